"""The kinds of faults, and how one is asked for: KIND@STEP, or KIND@STEP:rank=R for one process of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainbook.errors import ConfigError, Problem
from trainbook.nearest import did_you_mean

# What happens at the step, which is an attempted one, counted from 1; on every rank, or on the one that is named.
KINDS = {
    "repeated-tokens": "the samples of that step's batch become one repeated token, in every epoch",
    "random-labels": "the samples of that step's batch get random labels, targets or tokens, in every epoch",
    "nan-gradient": "one value of one gradient becomes NaN, once; with a rank, all gradients of that rank",
    "exploding-gradient": "all gradients are multiplied by 10,000, once",
    "bit-flip": "one bit in the result of one matrix product is flipped, once",
    "out-of-memory": "the micro-batch that the run started with does not fit into memory",
    "kill": "the process is killed with SIGKILL just before the step",
    "corrupt-checkpoint": "after the step, one bit of the newest complete checkpoint is flipped",
    "full-disk": "from the step on, the next three checkpoints cannot be written",
    "slow-tracker": "from the step on, a tracker hangs forever",
    "dead-tracker": "from the step on, a tracker raises an error at every row",
}
# These change samples, so they need a data set that Trainbook itself makes batches of.
OF_SAMPLES = ("repeated-tokens", "random-labels")
# These change the run's files and trackers, which are not those of one rank.
OF_THE_RUN = ("corrupt-checkpoint", "full-disk", "slow-tracker", "dead-tracker")


@dataclass(frozen=True)
class Fault:
    kind: str
    step: int
    rank: int | None = None  # None: on every one

    def __str__(self) -> str:
        return f"{self.kind}@{self.step}" + ("" if self.rank is None else f":rank={self.rank}")


def parse(texts: Sequence[str]) -> tuple[Fault, ...]:
    """The requested faults; all mistakes in them are reported together."""
    faults: list[Fault] = []
    problems: list[Problem] = []
    for text in [texts] if isinstance(texts, str) else texts:
        kind, has_step, place = text.strip().partition("@")
        step, has_rank, option = place.partition(":")
        name, _, rank = option.partition("=")
        if kind not in KINDS:
            hint = did_you_mean(kind, KINDS).lstrip()
            problems.append(_problem(text, f"the kind must be one of {', '.join(KINDS)}, but got '{kind}'.", hint))
        elif not has_step:
            problems.append(_problem(text, f"must be KIND@STEP, such as {kind}@5, but got no step."))
        elif not (_is_number(step) and int(step) >= 1):
            problems.append(_problem(text, f"the step must be an integer >= 1, but got '{step}'."))
        elif has_rank and name != "rank":
            message = f"only a rank may follow the step, as in {kind}@{step}:rank=1, but got '{option}'."
            problems.append(_problem(text, message))
        elif has_rank and not _is_number(rank):
            problems.append(_problem(text, f"the rank must be an integer >= 0, but got '{rank}'."))
        elif has_rank and kind in OF_THE_RUN:
            message = f"{kind} changes files or trackers of the run, not of one rank.", f"Use {kind}@{step}."
            problems.append(_problem(text, *message))
        elif (fault := Fault(kind, int(step), int(rank) if has_rank else None)) in faults:
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


def must_suit_world(faults: Sequence[Fault], world: int) -> None:
    """A fault of one rank needs a run that has several processes, and this rank among them."""
    problems = []
    for fault in faults:
        if fault.rank is None:
            continue
        if world == 1:
            hint = f"Use {Fault(fault.kind, fault.step)}, or start several processes with --nproc."
            problems.append(_problem(str(fault), "the run has a single process, so no rank can be named.", hint))
        elif fault.rank >= world:
            message = (
                f"the rank must be between 0 and {world - 1}, but got {fault.rank}: the run has {world} processes."
            )
            problems.append(_problem(str(fault), message))
    if problems:
        raise ConfigError(problems)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _problem(text: str, message: str, hint: str = "") -> Problem:
    return Problem("inject", text, message, hint)
