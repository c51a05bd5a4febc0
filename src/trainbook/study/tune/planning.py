"""What is tried next: the base first, then the points of the method, then the best few and the base with other seeds.

A pure function of the question, of the plan once there is one, and of the trials so far: any worker may ask it, and all
get the same answer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainbook.knobs.values import show
from trainbook.study.space import Space
from trainbook.study.tune.budget import Budget, choose
from trainbook.study.tune.methods import PointSearch, Tried, propose
from trainbook.study.tune.pruning import expected_share
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Order, Trial
from trainbook.study.tune.trial_run import without


@dataclass(frozen=True)
class Plan:
    """Settled once: how many trials, and over which knobs."""

    trials: int  # of all arms together, the bases included
    space: Space
    words: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        return {"trials": self.trials, "space": self.space.as_json(), "words": list(self.words)}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Plan:
        return cls(facts["trials"], Space.from_json(facts["space"]), tuple(facts["words"]))


def make_plan(question: StudyQuestion, trials: int, words: Sequence[str] = (), space: Space | None = None) -> Plan:
    """`space`: that of a study that is extended, whose trials so far would say nothing of another one."""
    roles = question.roles
    if space is not None:
        said = [f"extended to {trials} trials, over the knobs that were searched before"]
    elif roles.nuisance is not None:
        space, said = Space(roles.nuisance), []
    else:
        chosen, said = choose(question.loaded, trials // roles.num_arms, roles.settled, roles.arms)
        space = Space(tuple(chosen))
    return Plan(trials, space, (*words, *said))


def first_plan(question: StudyQuestion) -> Plan | None:
    """None: what a trial costs has to be seen first."""
    return make_plan(question, int(question.budget.amount)) if question.budget.unit == "trials" else None


def extended(question: StudyQuestion, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of a study that is given a larger budget: more trials, over the same knobs.

    What a budget in GPU-hours or tokens pays for is counted again, from what the trials have cost so far.
    """
    if question.budget.unit != "trials":
        return {name: value for name, value in kept.items() if name != "trials"}
    return make_plan(question, int(question.budget.amount), space=Space.from_json(kept["space"])).as_json()


@dataclass(frozen=True)
class Tuning:
    """The Planning of a search."""

    question: StudyQuestion

    @property
    def metric(self) -> str:
        return self.question.metric

    @property
    def higher_is_better(self) -> bool:
        return self.question.higher_is_better

    @property
    def pruning(self) -> str:
        return self.question.pruning

    def next_order(self, trials: Sequence[Trial], plan: Mapping[str, Any] | None) -> Order:
        return next_order(self.question, trials, plan)

    def is_spent(self, trials: Sequence[Trial]) -> bool:
        return is_spent(self.question, trials)

    def keeps(self, trials: Sequence[Trial]) -> set[int]:
        """What may be the best of its arm. A repetition is there to judge it, and takes nothing from it by a lucky
        seed."""
        arms = range(self.question.roles.num_arms)
        return {each.number for arm in arms for each in may_be_believed(self.question, trials, arm)}


def next_order(question: StudyQuestion, trials: Sequence[Trial], kept: Mapping[str, Any] | None) -> Order:
    arms = question.roles.arms
    if not trials:
        bases = [Trial(number, "base", values, arm=number) for number, values in enumerate(arms)]
        plan = first_plan(question)
        return Order(bases, plan.as_json() if plan else None)
    failed = next((each for each in trials if each.kind == "base" and each.state == "failed"), None)
    if failed is not None:  # what is wrong with it is wrong with all others as well
        return Order(refused=f"the base configuration could not be trained: {failed.reason}")
    first = [each for each in trials if each.kind == "base"]
    if all(each.state == "infeasible" and each.reason == without(question.metric) for each in first):
        return Order(refused=f"the base configuration ended without a finite {question.metric} to compare trials by.")
    new_plan: dict[str, Any] | None = None
    if kept is None or "trials" not in kept:
        if not all(each.is_over for each in trials):
            return Order()
        planned = _after_the_base(question, trials, kept)
        if isinstance(planned, str):
            return Order(refused=planned)
        new_plan = planned.as_json()
        kept = new_plan
    plan = Plan.from_json(kept)
    order = _points(question, plan, trials)
    if order or any(not each.is_over for each in trials):
        return Order(order, new_plan)
    return Order(repetitions(question, trials), new_plan)


def _after_the_base(question: StudyQuestion, ended: Sequence[Trial], kept: Mapping[str, Any] | None) -> Plan | str:
    """A budget in GPU-hours or tokens, as trials that cost what the base did; repetitions are paid from it too.

    Of trials that may be stopped early there are more: they end when the budget is spent. `kept` has the space of a
    study that is extended; a trial is then planned at the mean cost of those that ended with a loss.
    """
    budget, arms = question.budget, len(question.roles.arms)
    costs = [cost_of(each, budget) for each in ended if each.state == "done"]
    if not costs or max(costs) <= 0:
        return f"the base configuration did not train: {ended[0].reason or 'it has no cost'}"
    each = sum(costs) / len(costs)
    again = num_repetitions(question)
    left = budget.amount / each - again - arms
    trials = arms + math.floor(left / expected_share(question.pruning) + 1e-9)
    least = question.least_trials
    cost = Budget(float(f"{each:.3g}"), budget.unit)
    if trials < least:
        most = Budget(float(f"{(least + again) * each:.3g}"), budget.unit)
        return (
            f"budget: {budget} {budget.verb} too few. The base took {cost}; {Budget(least)} and {again} repetitions "
            f"need about {most}."
        )
    early = ", most of them stopped early," if question.pruning != "none" else ""
    space = None if kept is None else Space.from_json(kept["space"])
    took = "the base took" if space is None else "a trial took"
    return make_plan(
        question,
        trials,
        [f"{took} {cost}: {budget} {budget.verb} about {Budget(trials)}{early} and the repetitions"],
        space,
    )


def cost_of(trial: Trial, budget: Budget) -> float:
    return {"trials": 1.0, "tokens": float(trial.tokens), "GPU-hours": trial.gpu_seconds / 3600}[budget.unit]


def _points(question: StudyQuestion, plan: Plan, trials: Sequence[Trial]) -> list[Trial]:
    arms = question.roles.arms
    found: list[Trial] = []
    number = max(each.number for each in trials) + 1
    if is_spent(question, trials):
        return []
    for arm, compared in enumerate(arms):
        share = plan.trials // len(arms) + (arm < plan.trials % len(arms)) - 1  # without the base
        config = question.loaded.config
        given = {path: config.get(path) for each in plan.space.dimensions for path, _ in each.only_if}
        base = {each.path: config.get(each.path) for each in plan.space.dimensions}
        # The same points in each arm: what is compared is then all that differs.
        was = base_of(trials, arm)
        base_tried = (
            None if was is None else replace(_tried(question, was), units=tuple(plan.space.place(base)), values=base)
        )
        search = PointSearch(plan.space, share, question.seed, base, {**given, **compared}, base_tried)
        tried = [_tried(question, each) for each in trials if each.kind == "search" and each.arm == arm]
        for point in propose(question.method, search, tried) if share > 0 else []:
            values = {**compared, **point.values}
            found.append(Trial(number, "search", values, arm=arm, units=point.units, round=point.round))
            number += 1
    return found


def is_spent(question: StudyQuestion, trials: Sequence[Trial], reserved: int | None = None) -> bool:
    """Of hours and tokens: trials that took more than the base leave less for others, never for the repetitions.

    `reserved`: for so many more there must be enough; without it, for the repetitions that are still to come.
    """
    budget = question.budget
    if budget.unit == "trials":
        return False
    spent = sum(cost_of(each, budget) for each in trials)
    whole = [cost_of(each, budget) for each in trials if each.state == "done" and cost_of(each, budget) > 0]
    mean = sum(whole) / len(whole) if whole else 0.0
    searched = [each for each in trials if each.state == "running" and each.kind == "search"]
    expected = mean * expected_share(question.pruning)
    under_way = sum(max(0.0, expected - cost_of(each, budget)) for each in searched)
    if reserved is None:
        reserved = max(0, num_repetitions(question) - sum(each.kind == "repeat" for each in trials))
    return spent + under_way + mean * reserved >= budget.amount


def _tried(question: StudyQuestion, trial: Trial) -> Tried:
    searched = {
        path: value for path, value in trial.values.items() if path not in {e.path for e in question.roles.scientific}
    }
    loss = (
        None if trial.loss is None or trial.state != "done" else trial.loss * (-1 if question.higher_is_better else 1)
    )
    return Tried(trial.units, searched, trial.round, not trial.is_over, loss, trial.state == "infeasible")


# What is tried again with new seeds, and which trial is believed after that.
#
# The best of a search is chosen for its loss, which luck has helped. The best few and the base are repeated with the
# same new seeds, and the one with the best mean over these is believed. One that diverges with a new seed where the
# base does not is no value to recommend; where that is so with all of them, the base is what is left.


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
