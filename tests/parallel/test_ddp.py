from __future__ import annotations

from typing import ClassVar

import pytest
from tests.parallel.strategy_cases import StrategyCases, reference

__all__ = ["reference"]

pytestmark = pytest.mark.xdist_group("ddp")  # a world is made once, by one worker


class TestDataParallel(StrategyCases):
    strategy: ClassVar = {"strategy": "ddp"}
    # The number of targets, the gradients of this small model in one bucket, and the losses.
    collectives: ClassVar = {1: {"gloo:all_reduce": 1}, 2: {"gloo:all_reduce": 3}}
