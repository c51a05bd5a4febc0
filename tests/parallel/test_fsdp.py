from __future__ import annotations

from typing import ClassVar

import pytest
from tests.parallel.strategy_cases import Reference, StrategyCases, World, reference

__all__ = ["reference"]

pytestmark = pytest.mark.xdist_group("fsdp")  # a world is made once, by one worker


class TestFullyShard(StrategyCases):
    strategy: ClassVar = {"strategy": "fsdp"}
    has_replicas = False
    # Weights of the two blocks and of the rest are brought together for each of two micro-batches, those of blocks for
    # the backward pass again; gradients of the three are added up once (gloo does that by all_reduce). The others: the
    # number of targets, the losses, the norms.
    collectives: ClassVar = {1: {"gloo:all_reduce": 1}, 2: {"gloo:all_gather": 10, "gloo:all_reduce": 6}}

    def held_by(self, world: int) -> int:
        return world


@pytest.mark.slow
class TestHybridShard(StrategyCases):
    """Two copies of the model, each over two ranks."""

    strategy: ClassVar = {"strategy": "fsdp", "shard_over": 2}
    collectives: ClassVar = {2: {"gloo:all_gather": 10, "gloo:all_reduce": 9}}

    def held_by(self, world: int) -> int:
        return 2

    @pytest.fixture(scope="class", params=[4])
    @classmethod
    def world(
        cls, request: pytest.FixtureRequest, reference: Reference, tmp_path_factory: pytest.TempPathFactory
    ) -> World:
        return World(reference.lab, request.param, cls.strategy, tmp_path_factory.mktemp("hybrid"))
