"""What is to be tried next, as whoever keeps the ledger is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainbook.study.tune.trial import Trial

WAIT: Literal["wait"] = "wait"  # there is nothing now, but there will be


@dataclass(frozen=True)
class Order:
    """What is to be tried next, and what was settled on the way."""

    trials: Sequence[Trial] = ()
    plan: Mapping[str, Any] | None = None  # to be kept, if there is a new one
    refused: str | None = None  # why the study cannot go on. It is not kept: a fault may be mended


Planner = Callable[[Sequence[Trial], Mapping[str, Any] | None], Order]
Spent = Callable[[Sequence[Trial]], bool]
