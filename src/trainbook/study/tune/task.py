"""What a worker is to train for a trial, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainbook.knobs import Loaded, section_types
from trainbook.knobs.dumping import origin_text, yaml_value
from trainbook.knobs.loading import ALTERNATIVES
from trainbook.knobs.origin import Origin
from trainbook.study.tune.trial import Trial

TRIALS = "trials"  # the folder of their runs, in that of the study
BASE = "base.yaml"
LEDGER = "study.db"


@dataclass(frozen=True)
class TrialTask:
    trial: Trial
    folder: Path  # of the study
    metric: str
    until: float = 1.0  # the share of the whole run after which to pause
    shares_gpu: bool = False  # with other workers: memory that is too little may be enough alone

    @property
    def base(self) -> Path:
        return self.folder / BASE

    @property
    def name(self) -> str:
        return f"trial-{self.trial.number:04d}"

    @property
    def runs_dir(self) -> Path:
        return self.folder / TRIALS

    @property
    def overrides(self) -> list[str]:
        seed = {} if self.trial.seed is None else {"training.seed": self.trial.seed}
        return [f"{path}={yaml_value(value)}" for path, value in {**self.trial.values, **seed}.items()]


@dataclass(frozen=True)
class TrialOutcome:
    loss: float | None  # by the study's metric; None: infeasible
    tokens: int = 0
    reason: str | None = None  # why it is infeasible
    run: str | None = None


def without(metric: str) -> str:
    """The reason of a run that came to its end, and was not judged by this."""
    return f"it has no {metric}"


class Busy(Exception):
    """Another process still works in the trial's folder."""


class Failed(Exception):
    """A trial that ended by an error, and what it had cost by then."""

    def __init__(self, reason: str, tokens: int = 0, run: str | None = None, *, is_expected: bool = True) -> None:
        """`is_expected`: not an error that the process may not be well after, such as one of the device."""
        super().__init__(reason)
        self.reason, self.tokens, self.run, self.is_expected = reason, tokens, run, is_expected


Objective = Callable[[TrialTask], TrialOutcome]


def base_text(loaded: Loaded, found: Mapping[str, Any] | None = None, why: str = "found") -> str:
    """What was asked for, and over it what was found; no defaults: those may depend on what a trial changes.

    What was asked for is said to be taken over: beside another schedule or optimizer it may be without effect.
    """
    found = dict(found or {})
    lines: list[str] = []
    for section, kind in section_types().items():
        knobs = [f"{section}.{name}" for name in kind.model_fields]
        written = [path for path in knobs if path in found or path in written_values(loaded, found)]
        lines += [f"{section}:"] if written else []
        for path in written:
            value = found.get(path, loaded.get(path))
            origin = why if path in found else _taken_over(path, loaded.origins[path])
            lines.append(f"  {path.removeprefix(section + '.')}: {yaml_value(value)}  # {origin}")
    return "\n".join([*lines, ""])


def _taken_over(path: str, origin: Origin) -> str:
    return origin_text(path, replace(origin, is_taken_over=True))


# All trials must apply the same number of updates, to the same data, at the learning rate that they were given. The
# guard of a trial only ends it when it diverges.
TRIAL_GUARD = {
    "guard.skip_threshold": None,
    "guard.quarantine": False,
    "guard.max_rollbacks": 0,
    "guard.remedy": "none",
}


def trials_text(loaded: Loaded) -> str:
    """The base as the trials train it."""
    return base_text(loaded, trial_guard(loaded), "the same updates in all trials")


def trial_guard(loaded: Loaded) -> dict[str, Any]:
    """What of the guard differs in trials; the user's own choices stay."""
    if not loaded.config.guard.enabled:
        return {}
    return {
        path: value
        for path, value in TRIAL_GUARD.items()
        if loaded.get(path) != value and not loaded.origins[path].is_the_users
    }


def written_values(loaded: Loaded, over: Iterable[str] = ()) -> dict[str, Any]:
    """Of a configuration what is not a default, nor an alternative to one of these."""
    displaced = set().union(*(group for group in ALTERNATIVES if group & set(over)))
    return {
        path: loaded.get(path)
        for path, origin in loaded.origins.items()
        if origin.kind not in ("default", "derived") and path not in displaced
    }
