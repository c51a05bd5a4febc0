"""What a case is, and the list of all of them.

A case is a function that trains with or without the published bug and returns how good the model really is. Its
docstring says what is wrong. `causes` are in the doctor's vocabulary (trainbook.doctor.causes), and any of them is
right; a name that is not in it is what a doctor should say but has no word for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Score = dict[str, float]


@dataclass(frozen=True)
class Run:
    """One training, in a folder of its own."""

    folder: Path
    seed: int
    is_faulty: bool
    is_guarded: bool = False

    @property
    def place(self) -> dict[str, Any]:
        """Arguments of `watch`: the doctor sees this name."""
        return {"name": "run", "runs_dir": self.folder}

    @property
    def record(self) -> Path:
        return self.folder / "run"


Train = Callable[[Run], Score]


@dataclass(frozen=True)
class Case:
    name: str
    source: str  # a key of published.SOURCES
    bug: str  # the published bug, as its source names it
    causes: tuple[str, ...]
    program: str  # loop, huggingface, fit
    train: Train
    misleads: bool = False  # the numbers lie: the model need not be worse than its twin
    guard: bool = False  # an update can be bad by itself: the guard is the natural tool

    @property
    def what(self) -> str:
        return " ".join((self.train.__doc__ or "").split())


CASES: dict[str, Case] = {}


def case(
    name: str,
    source: str,
    bug: str,
    causes: str,
    program: str = "loop",
    *,
    misleads: bool = False,
    guard: bool = False,
) -> Callable[[Train], Train]:
    def register(train: Train) -> Train:
        assert name not in CASES, name
        CASES[name] = Case(name, source, bug, tuple(causes.split()), program, train, misleads, guard)
        return train

    return register
