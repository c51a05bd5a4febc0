"""The kinds of faults, and how one is asked for: KIND@STEP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from trainbook.errors import ConfigError, Problem

# What happens at the step, which is an attempted one, counted from 1.
KINDS = {
    "repeated-tokens": "the samples of that step's batch become one repeated token, in every epoch",
    "random-labels": "the samples of that step's batch get random labels, targets or tokens, in every epoch",
    "nan-gradient": "one value of one gradient becomes NaN, once",
    "exploding-gradient": "all gradients are multiplied by 10,000, once",
    "out-of-memory": "the micro-batch that the run started with does not fit into memory",
    "kill": "the process is killed with SIGKILL just before the step",
    "corrupt-checkpoint": "after the step, one bit of the newest complete checkpoint is flipped",
    "full-disk": "from the step on, the next three checkpoints cannot be written",
    "slow-tracker": "from the step on, a tracker hangs forever",
    "dead-tracker": "from the step on, a tracker raises an error at every row",
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
    """The requested faults; all mistakes in them are reported together."""
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
            problems.append(_problem(text, "must be given once, but was given twice."))
        else:
            faults.append(fault)
    if problems:
        raise ConfigError(problems)
    return tuple(faults)


def must_suit_own_data(faults: Sequence[Fault]) -> None:
    """The contents of a user's own batches are unknown, so they cannot be corrupted."""
    problems = [
        _problem(str(fault), "has no effect on data of your own.", "Corrupt the data itself.")
        for fault in faults
        if fault.kind in OF_SAMPLES
    ]
    if problems:
        raise ConfigError(problems)


def _problem(text: str, message: str, hint: str = "") -> Problem:
    return Problem("inject", text, message, hint)
