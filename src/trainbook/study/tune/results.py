"""What a study found, as facts: the best few with repeated seeds, and which of them may be believed."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from trainbook.errors import MissingExtra
from trainbook.study.space import Dimension
from trainbook.study.tune.methods import EXPLORES
from trainbook.study.tune.planning import (
    Plan,
    base_of,
    believed,
    cost_of,
    finalists,
    is_spent,
    is_unstable,
    new_losses,
    num_diverged,
    repeated,
    repeats_of,
    words_on_repeated,
)
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import ENDED, Trial

EDGE = 0.05  # of the range that was tried: nearer to an end is at it
GOOD_POINTS = 3  # as many should be about as good as the best, or it may be a lucky one
GOOD = 0.01  # of the best loss: as good; or twice the spread between seeds, if that is more

Facts = dict[str, Any]


def read(question: StudyQuestion, plan: Plan, trials: Sequence[Trial]) -> Facts:
    arms = [_arm(question, plan, trials, arm, values) for arm, values in enumerate(question.roles.arms)]
    chosen = best_arm(question, arms)
    arm = None if chosen is None else arms[chosen]
    best = None if chosen is None else believed(question, trials, chosen)
    return {
        "metric": question.metric,
        "higher_is_better": question.higher_is_better,
        "method": question.method,
        "budget": str(question.budget),
        "pruning": question.pruning,
        "space": plan.space.as_json(),
        "chosen": list(plan.words),
        "trials": [_trial(each) for each in trials],
        "planned": plan.trials,
        "budget_is_spent": is_spent(question, trials, reserved=1),  # nothing is left for one more
        "budget_used": _used(question, trials),
        "counts": {state: sum(each.state == state for each in trials) for state in ENDED},
        "seconds": sum(each.seconds for each in trials),
        "gpu_seconds": sum(each.gpu_seconds for each in trials),
        "tokens": sum(each.tokens for each in trials),
        "best": arm["best"] if arm else None,
        "recommended": _number_of(None if arm is None else stands_for(arm)),
        "ties": arm["ties"] if arm else [],
        "equal": [] if best is None else _equal(trials, best),
        "base": arm["base"] if arm else None,
        "difference": arm["difference"] if arm else None,
        "finalists": arm["finalists"] if arm else [],
        "unstable": arm["unstable"] if arm else [],
        "repeated": repeated(trials),
        "why_repeated": words_on_repeated(question, trials),
        "arms": arms if len(arms) > 1 else None,
        "comparison": compare_arms(question, arms, chosen) if len(arms) > 1 and chosen is not None else None,
        "boundary": [] if best is None else boundary(question, plan, trials, best),
        "good_region": None if best is None or arm is None else _good_region(question, trials, best, arm),
        "infeasible_share": _infeasible(trials),
        "importance": arm["importance"] if arm else None,
        "importance_refused": arm["importance_refused"] if arm else "no trial ended with a loss",
        "base_values": {each.path: question.loaded.get(each.path) for each in plan.space.dimensions},
    }


def _used(question: StudyQuestion, trials: Sequence[Trial]) -> float | None:
    """The share of a budget in hours or tokens."""
    budget = question.budget
    return None if budget.unit == "trials" else sum(cost_of(each, budget) for each in trials) / budget.amount


def _trial(each: Trial) -> Facts:
    return {
        "number": each.number,
        "kind": each.kind,
        "state": each.state,
        "values": dict(each.values),
        "loss": each.loss,
        "run": each.run,
        "reason": each.reason,
        "seed": each.seed,
        "of": each.of,
        "round": each.round,
        "tokens": each.tokens,
        "seconds": each.seconds,
        "gpu_seconds": each.gpu_seconds,
    }


def _arm(question: StudyQuestion, plan: Plan, trials: Sequence[Trial], arm: int, values: Mapping[str, Any]) -> Facts:
    best = believed(question, trials, arm)
    shares, refused = importance(question, plan, [each for each in trials if each.arm == arm])
    told = {"best": _with_repeats(best, trials), "base": _with_repeats(base_of(trials, arm), trials)}
    compared = finalists(question, trials, arm)
    unstable = [each for each in compared if each is not best and is_unstable(each, trials)]
    again = [facts for each in compared if (facts := _with_repeats(each, trials)) is not None]
    return {
        "compared": dict(values),
        **told,
        "difference": _difference(question, told["best"], told["base"], again),
        "ties": _ties(question, told["best"], told["base"], again),
        "finalists": again,
        "unstable": [_with_repeats(each, trials) for each in unstable],
        "importance": shares,
        "importance_refused": refused,
    }


def _with_repeats(trial: Trial | None, trials: Sequence[Trial]) -> Facts | None:
    """A best is chosen for its loss, which luck has helped: what it is worth is what new seeds say."""
    if trial is None:
        return None
    again = repeats_of(trial, trials)
    losses = {str(seed): loss for seed, loss in new_losses(trial, trials).items()}
    values = list(losses.values())
    return {
        "number": trial.number,
        "values": dict(trial.values),
        "loss": trial.loss,
        "state": trial.state,
        "run": trial.run,
        "repeats": {
            "losses": losses,
            "mean": statistics.fmean(values) if values else None,
            "spread": statistics.stdev(values) if len(values) > 1 else None,
            "infeasible": num_diverged(trial, trials),
            "failed": sum(each.state == "failed" for each in again),
        },
    }


def _number_of(trial: Facts | None) -> int | None:
    return None if trial is None else trial["number"]


def _difference(
    question: StudyQuestion, best: Facts | None, base: Facts | None, rivals: Sequence[Facts]
) -> Facts | None:
    """Of the best of an arm from its base; below 0 the best is better, whichever way the metric goes.

    The same seeds chose it among the finalists, so each of them counts as compared with the base.
    """
    if best is None or base is None or best["number"] == base["number"]:
        return None
    return paired(question, best, base, len(rivals), rivals)


def _ties(question: StudyQuestion, best: Facts | None, base: Facts | None, judged: Sequence[Facts]) -> list[int]:
    """Finalists that new seeds cannot tell apart from the best one."""
    if best is None:
        return []
    others = [*judged, *([base] if base is not None else [])]
    rivals = [each for each in judged if each["number"] != best["number"] and not each["repeats"]["infeasible"]]
    found = [(each, paired(question, best, each, max(1, len(rivals)), others)) for each in rivals]
    return [each["number"] for each, gap in found if gap and gap["interval"] and gap["verdict"] == "cannot tell"]


def _equal(trials: Sequence[Trial], best: Trial) -> list[int]:
    """Other trials of the search that came to the very same number, as an accuracy of few samples often does."""
    others = [each for each in trials if each.kind != "repeat" and each.arm == best.arm and each is not best]
    return [each.number for each in others if each.loss is not None and each.loss == best.loss]


def boundary(question: StudyQuestion, plan: Plan, trials: Sequence[Trial], best: Trial) -> list[Facts]:
    """Knobs whose best value lies at an end of what was tried: better ones may lie beyond."""
    found = []
    for each in plan.space.dimensions:
        value = best.values.get(each.path, question.loaded.get(each.path))
        if each.scale == "choice" or not each.has_place(value):
            continue
        known = {path: best.values.get(path, question.loaded.get(path)) for path, _ in each.only_if}
        if not each.is_searched_with(known):  # it has no part in the best
            continue
        tried = [each.to_scale(number) for number in _tried(question, each, trials, best.arm)]
        end = _end(each, each.to_scale(float(value)), tried)
        if end is not None:
            found.append({"knob": each.path, "end": end, "value": value})
    return found


def _end(each: Dimension, place: float, tried: Sequence[float]) -> str | None:
    """The side on which nothing was tried beyond this place, though the knob's law allows more."""
    low, high = min([each.to_scale(each.low), *tried]), max([each.to_scale(each.high), *tried])
    margin = EDGE * (high - low)
    if place <= low + margin:
        return None if _is_the_end_of_its_law(each, low) else "low"
    if place >= high - margin:
        return None if _is_the_end_of_its_law(each, high) else "high"
    if len(set(tried)) < 2:
        return None
    return "low" if place <= min(tried) else "high" if place >= max(tried) else None


def _tried(question: StudyQuestion, each: Dimension, trials: Sequence[Trial], arm: int) -> list[float]:
    """The values of a knob that were tried, the base's among them; those that diverged say what lies there, too."""
    begun = [trial for trial in trials if trial.arm == arm and trial.state not in ("dropped", "failed")]
    values = [
        trial.values.get(each.path, question.loaded.get(each.path) if trial.kind == "base" else None) for trial in begun
    ]
    return [float(value) for value in values if value is not None and each.has_place(value)]


def _is_the_end_of_its_law(each: Dimension, place: float) -> bool:
    return any(math.isclose(place, limit, abs_tol=1e-9) for limit in each.lawful if math.isfinite(limit))


def _good_region(question: StudyQuestion, trials: Sequence[Trial], best: Trial, arm: Facts) -> Facts:
    sign = -1 if question.higher_is_better else 1
    spread = arm["best"]["repeats"]["spread"] or 0.0
    assert best.loss is not None
    within = max(GOOD * abs(best.loss), 2 * spread)
    ended = [e for e in trials if e.kind != "repeat" and e.arm == best.arm and e.state == "done" and e.loss is not None]
    points = sum(sign * (each.loss or 0.0) <= sign * best.loss + within for each in ended)
    return {"within": within, "points": points, "enough": points >= GOOD_POINTS}


def _infeasible(trials: Sequence[Trial]) -> float | None:
    searched = [each for each in trials if each.kind == "search" and each.is_over and each.state != "dropped"]
    return sum(each.state == "infeasible" for each in searched) / len(searched) if searched else None


# How much each knob matters in what was searched. Only from an exploration that nothing was left out of.
#
# Pruning leaves the good ones, and among these the knob that decides nearly all no longer varies: a share read from
# them puts the knobs in the wrong order. So have methods that follow their own results. One knob at a time is no
# exploration of all. And few trials say nothing.


LEAST = 30  # trials that ended with a loss


def importance(
    question: StudyQuestion, plan: Plan, trials: Sequence[Trial]
) -> tuple[dict[str, float] | None, str | None]:
    """Shares that add up to 1, by PED-ANOVA; or why there are none. From the trials of one arm: the arms differ."""
    ended = [each for each in trials if each.kind == "search" and each.state == "done" and each.loss is not None]
    if question.method not in EXPLORES:
        is_alone = question.method == "one-at-a-time"
        why = "changes one knob at a time, never all of them together" if is_alone else "follows its own results"
        return None, f"{question.method} {why}, and shares of importance need {' or '.join(EXPLORES)}"
    if question.pruning != "none":
        return None, "pruned trials are missing from it, and shares of importance need a study without pruning"
    if len(ended) < LEAST:
        each = " for each value that is compared" if len(question.roles.arms) > 1 else ""
        count = f"{len(ended)} trial{'' if len(ended) == 1 else 's'} besides the base"
        return None, f"{count} ended with a loss, and shares of importance need {LEAST}{each}"
    if len(plan.space) < 2:
        return None, "only one knob was searched"
    if any(each.only_if for each in plan.space.dimensions):
        return None, "some knobs were searched only under a condition"
    return _shares(question, plan, ended), None


def _shares(question: StudyQuestion, plan: Plan, ended: Sequence[Trial]) -> dict[str, float]:
    try:
        import optuna
    except ImportError:
        raise MissingExtra("importance", "optuna", "tune") from None
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        was = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            study = optuna.create_study(direction="maximize" if question.higher_is_better else "minimize")
            for each in ended:
                params, spaces = {}, {}
                for one, unit in zip(plan.space.dimensions, each.units, strict=True):
                    is_choice = one.scale == "choice"
                    params[one.path] = min(int(unit * len(one.choices)), len(one.choices) - 1) if is_choice else unit
                    spaces[one.path] = (
                        CategoricalDistribution(range(len(one.choices))) if is_choice else FloatDistribution(0.0, 1.0)
                    )
                study.add_trial(optuna.trial.create_trial(params=params, distributions=spaces, value=each.loss))
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        finally:
            optuna.logging.set_verbosity(was)
    return {path: float(share) for path, share in found.items()}


# Trials that were repeated with the same new seeds, compared in pairs of one seed


CONFIDENCE = 0.95


def paired(
    question: StudyQuestion, new: Facts, old: Facts, comparisons: int = 1, others: Sequence[Facts] = ()
) -> Facts | None:
    """The mean difference between two trials by seed; below 0 the new one is better, whichever way the metric goes.

    None: they have no seed in common. A new one that diverged with any seed is never called better. With several
    `comparisons` each interval is wider, so that all of them hold together with the same confidence (Bonferroni).
    `others` were repeated too: the spread is pooled over all that have the same seeds (`residual_spread`).
    """
    sign = -1 if question.higher_is_better else 1
    before, now = old["repeats"]["losses"], new["repeats"]["losses"]
    seeds = [seed for seed in now if seed in before]
    if not seeds:
        return None
    mean = statistics.fmean(sign * (now[seed] - before[seed]) for seed in seeds)
    interval = None
    if len(seeds) > 1:
        from scipy.stats import t

        tables = {each["number"]: each["repeats"]["losses"] for each in (new, old, *others)}
        complete = [[table[seed] for seed in seeds] for table in tables.values() if set(seeds) <= set(table)]
        spread, freedom = residual_spread(complete)
        tail = (1 - CONFIDENCE) / comparisons / 2
        half = float(t.ppf(1 - tail, freedom)) * spread * math.sqrt(2 / len(seeds))
        interval = [mean - half, mean + half]
    verdict = "cannot tell"
    if interval is not None and interval[1] < 0 and not new["repeats"]["infeasible"]:
        verdict = "better"
    elif interval is not None and interval[0] > 0 and not old["repeats"]["infeasible"]:
        verdict = "worse"
    return {"mean": mean, "interval": interval, "seeds": len(seeds), "verdict": verdict}


def residual_spread(losses: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The standard deviation that trial and seed leave unexplained, and its degrees of freedom.

    A row for each trial, a column for each seed: a two-way layout without repetition. Of two rows it gives exactly the
    interval of the paired t test; of more, each difference borrows the spread of all, which two or three seeds need.
    """
    rows, columns = len(losses), len(losses[0])
    by_trial = [statistics.fmean(row) for row in losses]
    by_seed = [statistics.fmean(column) for column in zip(*losses, strict=True)]
    total = statistics.fmean(by_trial)
    squares = sum(
        (value - of_trial - of_seed + total) ** 2
        for row, of_trial in zip(losses, by_trial, strict=True)
        for value, of_seed in zip(row, by_seed, strict=True)
    )
    freedom = (rows - 1) * (columns - 1)
    return math.sqrt(squares / freedom), freedom


def stands_for(arm: Facts) -> Facts | None:
    """What an arm would recommend: its best, or its base where new seeds put that before it."""
    difference = arm["difference"]
    return arm["base"] if difference is not None and difference["mean"] > 0 else arm["best"]


def best_arm(question: StudyQuestion, arms: Sequence[Facts]) -> int | None:
    """By the mean over new seeds of what stands for each: a single run may be a lucky one. Without any, by its loss."""
    sign = -1 if question.higher_is_better else 1
    best_of = {place: best for place, arm in enumerate(arms) if (best := stands_for(arm)) is not None}
    repeated = [place for place, best in best_of.items() if best["repeats"]["mean"] is not None]

    def worth(place: int) -> tuple[bool, float, int]:
        best = best_of[place]
        value = best["repeats"]["mean"] if repeated else best["loss"]
        return bool(best["repeats"]["infeasible"]), sign * value, place

    return min(repeated or best_of, key=worth, default=None)


def _repeated(arms: Sequence[Facts]) -> list[Facts]:
    return [each for arm in arms for each in (*arm["finalists"], arm["base"]) if each is not None]


def compare_arms(question: StudyQuestion, arms: Sequence[Facts], chosen: int) -> list[Facts]:
    """What stands for the chosen arm against what does for each other one; below 0 the chosen one is better.

    The same seeds chose it among its arm's finalists and base, so each of them counts as compared.
    """
    comparisons = (len(arms) - 1) * max(1, len(arms[chosen]["finalists"]) + (arms[chosen]["base"] is not None))
    best = stands_for(arms[chosen])
    assert best is not None
    found = []
    for place, arm in enumerate(arms):
        other = stands_for(arm)
        if place == chosen or other is None:
            continue
        difference = paired(question, best, other, comparisons, _repeated(arms))
        nothing: Facts = {"mean": None, "interval": None, "seeds": 0, "verdict": "cannot tell"}
        found.append({"compared": arms[chosen]["compared"], "against": arm["compared"], **(difference or nothing)})
    return found
