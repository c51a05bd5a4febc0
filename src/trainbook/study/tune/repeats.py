"""What is tried again with new seeds, and which trial is believed after that.

The best of a search is chosen for its loss, which luck has helped. It and the base are repeated with the same new
seeds. One that diverges with a new seed where the base does not is no value to recommend: the next one is repeated in
its place, a few times, and then the base is what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainbook.study.tune.rows import Trial
from trainbook.study.tune.study_file import Question

MOST_CANDIDATES = 3  # of an arm, that are repeated before the base is kept


def best_of(question: Question, trials: Sequence[Trial], arm: int | None = None) -> Trial | None:
    """Of the search, not of repetitions: those are there to judge it."""
    return next(iter(ranked(question, trials, arm)), None)


def ranked(question: Question, trials: Sequence[Trial], arm: int | None = None) -> list[Trial]:
    """Those that ended with a loss, the best one first."""
    sign = -1 if question.higher_is_better else 1
    ended = [
        each for each in trials
        if each.state == "done" and each.loss is not None and each.kind != "repeat" and arm in (None, each.arm)
    ]  # fmt: skip
    return sorted(ended, key=lambda each: (sign * (each.loss or 0.0), each.number))


def base_of(trials: Sequence[Trial], arm: int) -> Trial | None:
    return next((each for each in trials if each.kind == "base" and each.arm == arm), None)


def repeats_of(trial: Trial, trials: Sequence[Trial]) -> list[Trial]:
    return [each for each in trials if each.of == trial.number]


def num_diverged(trial: Trial, trials: Sequence[Trial]) -> int:
    return sum(each.state == "infeasible" for each in repeats_of(trial, trials))


def is_unstable(trial: Trial, trials: Sequence[Trial]) -> bool:
    """With a new seed it could not be trained, and the base could; or it could with none of them."""
    again = repeats_of(trial, trials)
    diverged = num_diverged(trial, trials)
    if trial.kind == "base" or diverged == 0:
        return False
    base = base_of(trials, trial.arm)
    base_holds = base is not None and base.state == "done" and num_diverged(base, trials) == 0
    return base_holds or diverged == len(again)


def candidates(question: Question, trials: Sequence[Trial], arm: int) -> list[Trial]:
    """Those that may be recommended, the best one first: at most a few, and none that is behind the base."""
    found: list[Trial] = []
    for each in ranked(question, trials, arm):
        if len(found) >= MOST_CANDIDATES and each.kind != "base":
            continue
        found.append(each)
        if each.kind == "base":
            break
    return found


def believed(question: Question, trials: Sequence[Trial], arm: int) -> Trial | None:
    """The first one that holds with new seeds; where none does, the one that diverged least often."""
    found = candidates(question, trials, arm)
    stable = next((each for each in found if not is_unstable(each, trials)), None)
    return stable or min(found, key=lambda each: num_diverged(each, trials), default=None)


def num_repetitions(question: Question) -> int:
    """As planned for; more only where the best does not hold."""
    return 2 * question.seeds * len(question.roles.arms)


def repetitions(question: Question, trials: Sequence[Trial]) -> list[Trial]:
    """Those that are still to be tried; of each arm the base's, and those of the best one that may hold."""
    first = question.loaded.config.training.seed + 1
    number = max((each.number for each in trials), default=-1) + 1
    wanted: dict[int, Trial] = {}
    for arm in range(len(question.roles.arms)):
        for each in (believed(question, trials, arm), base_of(trials, arm)):
            if each is not None and each.state == "done" and not repeats_of(each, trials):
                wanted[each.number] = each
    return [
        Trial(number + place * question.seeds + seed, "repeat", each.values, arm=each.arm, units=each.units,
              seed=first + seed, of=each.number)
        for place, each in enumerate(wanted.values())
        for seed in range(question.seeds)
    ]  # fmt: skip
