"""The kinds of faults, and how one is asked for: KIND@STEP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from trainbook.errors import ConfigError, Problem

# What happens at the step, which is an attempted one, counted from 1.
KINDS = {
    "repeated-tokens": "the samples of that step's batch are one token over and over, wherever they appear",
    "random-labels": "the samples of that step's batch have random labels, targets or tokens, wherever they appear",
    "nan-gradient": "one number of one gradient is not a number, once",
    "exploding-gradient": "all gradients are 10,000 times as large, once",
    "out-of-memory": "memory is not enough for as many rows at a time as the run began with",
    "kill": "the process is killed just before the step, and nothing in it gets to clean up",
    "corrupt-checkpoint": "after the step, one bit of the newest complete checkpoint is flipped",
    "full-disk": "from the step on, the next three checkpoints cannot be written",
    "slow-tracker": "a tracker hangs for ever from the step on",
    "dead-tracker": "a tracker fails at every row from the step on",
}
# These change samples, so they need a data set that Trainbook itself makes batches of.
OF_SAMPLES = ("repeated-tokens", "random-labels")


@dataclass(frozen=True)
class Fault:
    kind: str
    step: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.step}"


def parse(texts: Sequence[str]) -> tuple[Fault, ...]:
    """The faults that are asked for; every mistake in them is told at once."""
    faults: list[Fault] = []
    problems: list[Problem] = []
    for text in [texts] if isinstance(texts, str) else texts:
        kind, has_step, step = text.strip().partition("@")
        if kind not in KINDS:
            near = get_close_matches(kind, KINDS, n=1)
            hint = f"Did you mean {near[0]}?" if near else ""
            problems.append(_problem(text, f"the kind must be one of {', '.join(KINDS)}, but got '{kind}'.", hint))
        elif not has_step:
            problems.append(_problem(text, f"must be KIND@STEP, such as {kind}@5, but got no step."))
        elif not (step.isascii() and step.isdecimal() and int(step) >= 1):
            problems.append(_problem(text, f"the step must be an integer >= 1, but got '{step}'."))
        elif (fault := Fault(kind, int(step))) in faults:
            problems.append(_problem(text, "must be given once, but got it twice."))
        else:
            faults.append(fault)
    if problems:
        raise ConfigError(problems)
    return tuple(faults)


def must_suit_own_data(faults: Sequence[Fault]) -> None:
    """What a user's own batches are made of is not known, so it cannot be spoiled."""
    problems = [
        _problem(str(fault), "has no effect on data of your own.", "Spoil the data itself.")
        for fault in faults
        if fault.kind in OF_SAMPLES
    ]
    if problems:
        raise ConfigError(problems)


def _problem(text: str, message: str, hint: str = "") -> Problem:
    return Problem("inject", text, message, hint)
