"""A trial, as the ledger has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from trainbook.bounded import json_text

# waiting, running; done: it has a loss; pruned: stopped early, because others were better; infeasible: it cannot be
# trained like this (diverged, refused by a law, too large for the memory); failed: something else went wrong; dropped:
# never begun, because the budget was spent.
State = Literal["waiting", "running", "done", "pruned", "infeasible", "failed", "dropped"]
Kind = Literal["base", "search", "repeat"]
ENDED = ("done", "pruned", "infeasible", "failed", "dropped")


@dataclass(frozen=True)
class Trial:
    number: int
    kind: Kind
    values: Mapping[str, Any]  # of searched and compared knobs, over the base
    arm: int = 0  # which of the compared combinations
    units: tuple[float, ...] = ()
    round: int = 0
    seed: int | None = None  # of a repetition; None: the base's own
    of: int | None = None  # the trial that is repeated
    state: State = "waiting"
    worker: str | None = None
    attempts: int = 0
    loss: float | None = None  # by the study's metric
    reason: str | None = None  # why it did not end with a loss
    run: str | None = None
    tokens: int = 0
    seconds: float = field(default=0.0, compare=False)
    gpu_seconds: float = field(default=0.0, compare=False)  # of a GPU that several share, each one's part

    @property
    def is_over(self) -> bool:
        return self.state in ENDED

    def as_row(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in self.__dataclass_fields__}
        row["values"] = json.dumps(dict(self.values))
        row["units"] = json.dumps(list(self.units))
        return row

    @classmethod
    def from_row(cls, row: Any) -> Trial:
        known = {name: getattr(row, name) for name in cls.__dataclass_fields__ if name not in ("values", "units")}
        read = json_text.loads(row._mapping["values"])
        # JSON has no tuples, which the choices of such a knob are.
        values = {path: tuple(value) if isinstance(value, list) else value for path, value in read.items()}
        known["tokens"] = int(known["tokens"])
        return cls(**known, values=values, units=tuple(json_text.loads(row.units)))


@dataclass(frozen=True)
class TrialReport:
    number: int
    rung: float
    loss: float | None


# What is to be tried next, as whoever keeps the ledger is told


WAIT: Literal["wait"] = "wait"  # there is nothing now, but there will be


@dataclass(frozen=True)
class Order:
    """What is to be tried next, and what was settled on the way."""

    trials: Sequence[Trial] = ()
    plan: Mapping[str, Any] | None = None  # to be kept, if there is a new one
    refused: str | None = None  # why the study cannot go on. It is not kept: a fault may be mended


Planner = Callable[[Sequence[Trial], Mapping[str, Any] | None], Order]
Spent = Callable[[Sequence[Trial]], bool]


class Planning(Protocol):
    """What a study asks for, one trial after the other: all that its workers know of it. Any of them may ask, and all
    get the same answer."""

    @property
    def metric(self) -> str: ...
    @property
    def higher_is_better(self) -> bool: ...
    @property
    def pruning(self) -> str: ...
    def next_order(self, trials: Sequence[Trial], plan: Mapping[str, Any] | None) -> Order: ...
    def is_spent(self, trials: Sequence[Trial]) -> bool: ...
    def keeps(self, trials: Sequence[Trial]) -> set[int]:
        """The trials whose weights stay on the disk, by number."""
        ...
