"""What is tried again with new seeds, and which trial is believed after that.

The best of a search is chosen for its loss, which luck has helped. The best few and the base are repeated with the same
new seeds, and the one with the best mean over these is believed. One that diverges with a new seed where the base does
not is no value to recommend; where that is so with all of them, the base is what is left.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from trainbook.knobs.values import show
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Trial

MOST_CANDIDATES = 3  # of an arm, that are repeated beside the base


def best_of(question: StudyQuestion, trials: Sequence[Trial], arm: int | None = None) -> Trial | None:
    """Of the search, not of repetitions: those are there to judge it."""
    return next(iter(ranked(question, trials, arm)), None)


def ranked(question: StudyQuestion, trials: Sequence[Trial], arm: int | None = None) -> list[Trial]:
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


def new_losses(trial: Trial, trials: Sequence[Trial]) -> dict[int | None, float]:
    """By the seed, of the repetitions that ended with a loss."""
    ended = [each for each in repeats_of(trial, trials) if each.state == "done"]
    return {each.seed: each.loss for each in ended if each.loss is not None}


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


def candidates(question: StudyQuestion, trials: Sequence[Trial], arm: int) -> list[Trial]:
    """Those that may be recommended, the best one first: at most a few, and none that is behind the base."""
    found: list[Trial] = []
    for each in ranked(question, trials, arm):
        if len(found) >= MOST_CANDIDATES and each.kind != "base":
            continue
        found.append(each)
        if each.kind == "base":
            break
    return found


def finalists(question: StudyQuestion, trials: Sequence[Trial], arm: int) -> list[Trial]:
    """The candidates that new seeds decide between; the base is what the one that is believed is compared with."""
    return [each for each in candidates(question, trials, arm) if each.kind != "base"]


def believed(question: StudyQuestion, trials: Sequence[Trial], arm: int) -> Trial | None:
    """Of the finalists that hold with new seeds, the best by these; where nothing was repeated, the first one.

    Where none holds, the base; and where that has no loss, the one that diverged least often.
    """
    found = candidates(question, trials, arm)
    stable = [each for each in found if not is_unstable(each, trials)]
    if not stable:
        return min(found, key=lambda each: num_diverged(each, trials), default=None)
    repeated = [each for each in stable if new_losses(each, trials)]
    judged = [each for each in repeated if each.kind != "base"] or repeated
    return _best_by_new_seeds(question, judged, trials) if judged else stable[0]


def _best_by_new_seeds(question: StudyQuestion, judged: Sequence[Trial], trials: Sequence[Trial]) -> Trial:
    """By the mean over the seeds that all of them have: one that lacks a hard seed must not win by that."""
    fewest = min(num_diverged(each, trials) for each in judged)  # above 0 only where the base diverges too
    judged = [each for each in judged if num_diverged(each, trials) == fewest]
    losses = [new_losses(each, trials) for each in judged]
    shared = [seed for seed in losses[0] if all(seed in each for each in losses)]
    if not shared:
        return judged[0]
    sign = -1 if question.higher_is_better else 1
    means = [sign * statistics.fmean(each[seed] for seed in shared) for each in losses]
    return judged[means.index(min(means))]


def may_be_believed(question: StudyQuestion, trials: Sequence[Trial], arm: int) -> list[Trial]:
    """All candidates until each has its repetitions; then the one that is believed."""
    found = candidates(question, trials, arm)
    again = [repeats_of(each, trials) for each in found]
    if question.seeds and not all(some and all(each.is_over for each in some) for some in again):
        return found
    best = believed(question, trials, arm)
    return [] if best is None else [best]


def num_repetitions(question: StudyQuestion) -> int:
    """As planned for; fewer where the base is among the best."""
    return (MOST_CANDIDATES + 1) * question.seeds * len(question.roles.arms)


def repetitions(question: StudyQuestion, trials: Sequence[Trial]) -> list[Trial]:
    """Those that are still to be asked for: of each arm all candidates', the base being one of them."""
    first = question.loaded.config.training.seed + 1
    number = max((each.number for each in trials), default=-1) + 1
    asked = {(each.of, each.seed) for each in trials}
    missing = [
        (each, seed)
        for arm in range(len(question.roles.arms))
        for each in candidates(question, trials, arm)
        for seed in range(first, first + question.seeds)
        if (each.number, seed) not in asked
    ]
    return [
        Trial(number + place, "repeat", each.values, arm=each.arm, units=each.units, seed=seed, of=each.number)
        for place, (each, seed) in enumerate(missing)
    ]


def repeated(trials: Sequence[Trial]) -> list[int]:
    """The numbers of the trials that are repeated, in the order in which this was asked for."""
    return [number for number in dict.fromkeys(each.of for each in trials) if number is not None]


def words_on_repeated(question: StudyQuestion, trials: Sequence[Trial]) -> list[str]:
    """Which trials are repeated with new seeds, and why these; a sentence for each arm."""
    lines = []
    for arm, values in enumerate(question.roles.arms):
        own = [each for each in trials if each.arm == arm]
        numbers, seeds = repeated(own), {each.seed for each in own if each.of is not None}
        if not numbers:
            continue
        base = base_of(own, arm)
        has_base = base is not None and base.number in numbers
        others = [number for number in numbers if base is None or number != base.number]
        compared = "".join(f"{path}={show(value)}, " for path, value in values.items())
        count = f"{len(seeds)} new seed{'s' if len(seeds) > 1 else ''}"
        what = _named(others, has_base) + (f", and the base (trial {base.number})" if base and has_base else "")
        if base and not others:
            what = f"only the base (trial {base.number}), since no trial is better than it"
        lines.append(f"{compared}repeated with {count}: {what}")
    return lines


def _named(numbers: Sequence[int], has_base: bool) -> str:
    """Trials other than the base, and why they were chosen."""
    if not numbers:
        return ""
    names = f"trials {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if numbers[1:] else f"trial {numbers[0]}"
    if len(numbers) == MOST_CANDIDATES:
        return f"{names}, the best three"
    if len(numbers) > MOST_CANDIDATES:  # of a study that was extended
        return f"{names}, the best three at the end of each search"
    if has_base:
        return f"{names}, the only {'one' if len(numbers) == 1 else 'ones'} better than the base"
    return f"{names}, the only {'one' if len(numbers) == 1 else 'ones'} that could be trained"
