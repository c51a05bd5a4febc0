"""Did a change help? Two runs that differ in nothing else, compared with the noise between them in view."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from scipy import stats

from trainbook.runs.run_record import RunRecord

Verdict = Literal["helped", "did not help", "made it worse", "cannot tell"]
Interval = tuple[float, float]
Curve = Sequence[tuple[int, float]]  # step, value

TAIL = 3  # the last evaluations, whose mean is compared: one alone may be a lucky one
SIGMAS = 2.0  # of noise on each side of a difference between two single runs
# Of the loss, as one sigma: what chance alone makes of two single runs of the same seed. Two runs of gpt-tiny whose
# rates differ by one part in 2000 are 0.9 % apart after 150 steps.
CHANCE = 0.0075
CONFIDENCE = 0.95  # of an interval over seeds, or over rows
NEGLIGIBLE = 0.02  # of the control's value: a difference that is surely smaller is none


@dataclass(frozen=True)
class RemedyComparison:
    measure: str  # what was compared
    control: float
    remedy: float
    difference: float  # remedy less control
    interval: Interval | None  # of the difference
    verdict: Verdict
    reason: str  # how the verdict follows from the numbers, in a sentence


def reach_of(looks: int) -> tuple[float, float]:
    """Sigmas, and the confidence of an interval, with which nothing but chance is called a difference no more often in
    so many looks than in one with SIGMAS or CONFIDENCE: each look has its part of the error (Bonferroni)."""
    return float(stats.norm.isf(stats.norm.sf(SIGMAS) / looks)), 1 - (1 - CONFIDENCE) / looks


def compare_curves(measure: str, control: Curve, remedy: Curve, looks: int = 1) -> RemedyComparison:
    """One run of each. What would differ between two runs that differ in nothing but chance is not known from these:
    taken for it is how far their difference lies off its own course from one evaluation to the next, and CHANCE."""
    if (found := _not_finite(measure, control, remedy)) is not None:
        return found
    ends = _ends(control, remedy)
    if list(control) == list(remedy):
        return _judged(measure, ends, (0.0, 0.0), "the two runs are the same at every evaluation")
    if [step for step, _ in control] == [step for step, _ in remedy]:
        of_evaluations = fluctuation([(at, b - a) for (at, a), (_, b) in zip(control, remedy, strict=True)])
    else:
        of_evaluations = math.hypot(fluctuation(control), fluctuation(remedy))
    # Not divided by the number of evaluations: neighbours are of nearly the same weights.
    noise = math.hypot(of_evaluations, CHANCE * abs(ends[0]))
    difference, (sigmas, _) = ends[1] - ends[0], reach_of(looks)
    low, high = difference - sigmas * noise, difference + sigmas * noise
    told = f"the noise of a difference between single runs is about {noise:.2g} here"
    if low < 0 < high and (surely := _apart(control, remedy, sigmas)):
        # One of them is wild, so that its mean says little; but all of its last values are worse than the other's.
        low, high = (min(surely, high), high) if surely > 0 else (low, max(surely, low))
        told = f"all of the last {TAIL} evaluations of one run are worse than all of the other's"
    return _judged(measure, ends, (low, high), told)


def _apart(control: Curve, remedy: Curve, sigmas: float) -> float:
    """By how much the last values differ at the very least; 0 if they overlap, or if noise could make them."""
    tails = [[value for _, value in curve[-TAIL:]] for curve in (control, remedy)]
    for sign, better, worse in ((1, 0, 1), (-1, 1, 0)):
        noise = math.hypot(fluctuation((control, remedy)[better]), CHANCE * abs(_end((control, remedy)[better])))
        gap = min(tails[worse]) - max(tails[better]) - sigmas * noise
        if gap > 0:
            return sign * gap
    return 0.0


def compare_seeds(measure: str, pairs: Sequence[tuple[Curve, Curve]], looks: int = 1) -> RemedyComparison:
    """A run of each for every seed: the mean difference, with a t interval over seeds."""
    if len(pairs) == 1:
        return compare_curves(measure, *pairs[0], looks)
    broken = [found for pair in pairs if (found := _not_finite(measure, *pair)) is not None]
    if broken:
        verdicts = {found.verdict for found in broken}
        if len(broken) == len(pairs) and len(verdicts) == 1:
            return broken[0]
        reason = f"{len(broken)} of {len(pairs)} seeds do not end with finite losses in both runs"
        return RemedyComparison(measure, math.nan, math.nan, math.nan, None, "cannot tell", reason)
    ends = [_ends(control, remedy) for control, remedy in pairs]
    interval = t_interval([remedy - control for control, remedy in ends], reach_of(looks)[1])
    means = statistics.fmean(control for control, _ in ends), statistics.fmean(remedy for _, remedy in ends)
    return _judged(measure, means, interval, f"a t interval over {len(pairs)} seeds")


def compare_speeds(
    measure: str, control: Sequence[Sequence[float]], remedy: Sequence[Sequence[float]]
) -> RemedyComparison:
    """Rows of several runs of each. A machine is not equally fast all the time: what the runs of one kind differ by is
    part of the noise, beside how their rows scatter."""
    if any(len(rows) < 2 for rows in (*control, *remedy)):
        reason = "there are too few logged rows to estimate their variance"
        return _unknown(measure, [*chain(*control)], [*chain(*remedy)], reason)
    means, errors = [], []
    for runs in (control, remedy):
        of_runs = [statistics.fmean(rows) for rows in runs]
        scatter = sum(statistics.variance(rows) / len(rows) for rows in runs) / len(runs) ** 2
        drift = statistics.variance(of_runs) / len(of_runs) if len(of_runs) > 1 else 0.0
        means.append(statistics.fmean(of_runs))
        errors.append(math.sqrt(scatter + drift))
    noise, difference = math.hypot(*errors), means[1] - means[0]
    interval = (difference - SIGMAS * noise, difference + SIGMAS * noise)
    told = f"from the variance of rows, and of {len(control)} runs of each"
    return _judged(measure, (means[0], means[1]), interval, told, lower_is_better=False)


def compare_growth(measure: str, control: Curve, remedy: Curve) -> RemedyComparison:
    """Of what should stay where it is: the slope of a straight line, a step."""
    if min(len(control), len(remedy)) < 3:
        return _unknown(measure, [], [], "there are too few logged rows to see a trend")
    lines: list[Any] = [stats.linregress([s for s, _ in curve], [v for _, v in curve]) for curve in (control, remedy)]
    slopes = float(lines[0].slope), float(lines[1].slope)
    noise = math.hypot(*(float(line.stderr) for line in lines))
    difference = slopes[1] - slopes[0]
    interval = (difference - SIGMAS * noise, difference + SIGMAS * noise)
    return _judged(measure, slopes, interval, "from the standard errors of the two slopes")


def compare_scatter(measure: str, control: Curve, remedy: Curve) -> RemedyComparison:
    """How evaluations scatter about their own course: the ratio of variances, with an F interval."""
    if min(len(control), len(remedy)) < 4 or _not_finite(measure, control, remedy) is not None:
        return _unknown(measure, [], [], "there are too few evaluations to estimate their variance")
    spreads = fluctuation(control, share=1.0), fluctuation(remedy, share=1.0)
    if spreads[0] == 0.0:
        return _unknown(measure, [0.0], [spreads[1]], "the control's evaluations do not vary")
    freedom = [len(curve) - 2 for curve in (control, remedy)]
    ratio = (spreads[1] / spreads[0]) ** 2
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(ratio / stats.f.ppf(bound, *reversed(freedom))) for bound in (1 - tail, tail))
    interval = spreads[0] * (math.sqrt(low) - 1), spreads[0] * (math.sqrt(high) - 1)
    return _judged(measure, spreads, interval, "from the ratio of the variances")


def fluctuation(curve: Curve, share: float = 0.5) -> float:
    """How far a value lies off the straight line between its neighbours, as the sigma of one value, over the last
    part of a curve. A steady rise or fall is no fluctuation; a bend is taken for some, so this is rather too large."""
    points = list(curve)[-max(4, math.ceil(len(curve) * share)) :]
    if len(points) < 3:  # not to be told from a trend
        return abs(points[-1][1] - points[0][1]) / math.sqrt(2)
    variances = []
    for (before, first), (at, value), (after, last) in zip(points, points[1:], points[2:], strict=False):
        weight = (after - at) / (after - before)
        off = value - (weight * first + (1 - weight) * last)
        variances.append(off**2 / (1 + weight**2 + (1 - weight) ** 2))
    return math.sqrt(statistics.fmean(variances))


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    reach = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return mean - reach, mean + reach


def _judged(
    measure: str, ends: tuple[float, float], interval: Interval, told: str, *, lower_is_better: bool = True
) -> RemedyComparison:
    (control, remedy), (low, high) = ends, interval
    worst, best = (high, low) if lower_is_better else (-low, -high)  # as if lower were better
    small = NEGLIGIBLE * abs(control)
    if worst < 0:
        verdict, why = "helped", "the whole interval is on the better side"
    elif best > 0:
        verdict, why = "made it worse", "the whole interval is on the worse side"
    elif max(abs(low), abs(high)) <= small:
        verdict, why = "did not help", f"the difference, if any, is below {NEGLIGIBLE:.0%}"
    else:
        verdict, why = "cannot tell", "the interval includes both better and worse"
        if (worst + best) / 2 > small:
            why += ", most of it worse"
    return RemedyComparison(measure, control, remedy, remedy - control, interval, verdict, f"{why} ({told})")


def _not_finite(measure: str, control: Curve, remedy: Curve) -> RemedyComparison | None:
    """Nothing to subtract: what stayed finite is better than what did not."""
    before, after = _end(control), _end(remedy)
    if math.isfinite(before) and math.isfinite(after):
        return None
    verdict: Verdict = "did not help"
    if math.isfinite(before) or math.isfinite(after):
        verdict = "helped" if math.isfinite(after) else "made it worse"
    reason = {
        "helped": "the control does not end with a finite loss, the remedy does",
        "made it worse": "the remedy does not end with a finite loss, the control does",
        "did not help": "neither ends with a finite loss",
    }[verdict]
    return RemedyComparison(measure, before, after, math.nan, None, verdict, reason)


def _ends(control: Curve, remedy: Curve) -> tuple[float, float]:
    """Of runs of the same length, the mean of the last evaluations. Of runs of different lengths, the end of the line
    through these: one may still fall there while the other rises, and what counts is the model that each leaves."""
    if _are_as_long(control, remedy):
        return _end(control), _end(remedy)
    return _end_of_line(control), _end_of_line(remedy)


def _are_as_long(control: Curve, remedy: Curve) -> bool:
    return not control or not remedy or control[-1][0] == remedy[-1][0]


def _end_of_line(curve: Curve) -> float:
    steps, values = zip(*curve[-TAIL:], strict=True)
    if len(steps) < TAIL:
        return values[-1]
    slope, intercept = statistics.linear_regression(steps, values)
    return slope * steps[-1] + intercept


def _end(curve: Curve) -> float:
    return statistics.fmean(value for _, value in curve[-TAIL:]) if curve else math.nan


def _unknown(measure: str, control: Sequence[float], remedy: Sequence[float], reason: str) -> RemedyComparison:
    before, after = (statistics.fmean(values) if values else math.nan for values in (control, remedy))
    return RemedyComparison(measure, before, after, after - before, None, "cannot tell", reason)


# What the arms of a try are compared on: the loss, or for other symptoms the speed, the memory, or that it runs


Measure = Literal["loss", "speed", "memory", "runs", "scatter"]
MEASURES: Mapping[str, Measure] = {  # by cause; of all others it is the loss that should get better
    "loader-slow": "speed",
    "throughput-drop": "speed",
    "slow-rank": "speed",
    "memory-creep": "memory",
    "out-of-memory": "runs",
    "evaluation-noisy": "scatter",
}
ASTRAY = 0.1  # of the loss, in the middle of all rows: a control that differs more from the run is not like it
BLOCKS = 8  # means of training rows, where there is nothing to evaluate on

Outcome = Mapping[str, Any]  # of an arm
Pair = tuple[Outcome, Outcome]  # control and remedy, of the same seed


def compare(measure: Measure, pairs: Sequence[Pair], same_evaluation: bool = True, looks: int = 1) -> RemedyComparison:
    """`looks`: at how many ends of the arms this is asked, at most."""
    if measure == "speed":
        control, remedy = ([arm["tokens_per_second"] for arm in arms] for arms in zip(*pairs, strict=True))
        return compare_speeds("tokens per second", control, remedy)
    if measure == "memory":
        control, remedy = pairs[0]
        return compare_growth("memory growth in bytes per step", _curve(control["memory"]), _curve(remedy["memory"]))
    if measure == "runs":
        return _compare_running(pairs)
    if measure == "scatter":
        control, remedy = pairs[0]
        name = "standard deviation of the validation loss"
        return compare_scatter(name, _curve(control["evaluations"]), _curve(remedy["evaluations"]))
    return _compare_losses(pairs, same_evaluation, looks)


def _compare_losses(pairs: Sequence[Pair], same_evaluation: bool, looks: int) -> RemedyComparison:
    targets = [[arm["targets"] for arm in pair] for pair in pairs]
    if not same_evaluation or any(a != b for a, b in targets if None not in (a, b)):
        reason = "the change also affects the evaluation, so the two losses are not comparable"
        control, remedy = pairs[0]
        return RemedyComparison("validation loss", _last(control), _last(remedy), math.nan, None, "cannot tell", reason)
    is_evaluated = all(arm["evaluations"] or arm["failure"] for pair in pairs for arm in pair)
    is_evaluated &= any(arm["evaluations"] for pair in pairs for arm in pair)
    name = "validation loss" if is_evaluated else "training loss"
    curves = [(_losses(control, is_evaluated), _losses(remedy, is_evaluated)) for control, remedy in pairs]
    if not any(arm["failure"] for pair in pairs for arm in pair) and not _are_as_long(*curves[0]):
        name = f"final {name}"
    return compare_seeds(name, curves, looks)


def _losses(arm: Outcome, is_evaluated: bool) -> Curve:
    curve = _curve(arm["evaluations"]) if is_evaluated else _blocks(_curve(arm["losses"]))
    return [*curve, (arm["last_step"], math.inf)] if arm["failure"] else curve


def _compare_running(pairs: Sequence[Pair]) -> RemedyComparison:
    counts = [sum(bool(arm["failure"] or arm["memory_shortages"]) for arm in arms) for arms in zip(*pairs, strict=True)]
    control, remedy = counts
    verdict: Verdict
    if control == 0:
        verdict, reason = "cannot tell", "this time the control did not run out of memory either"
    elif remedy == 0:
        verdict, reason = "helped", "the control ran out of memory, the remedy did not"
    else:
        verdict, reason = "did not help", "the remedy ran out of memory as well"
    if remedy > control:
        verdict, reason = "made it worse", "the remedy ran out of memory, the control did not"
    return RemedyComparison("runs short of memory", control, remedy, remedy - control, None, verdict, reason)


def are_the_same(one: Outcome, other: Outcome) -> bool:
    """To the last digit, as two runs are of which one has a change that never acts."""
    return bool(one["losses"]) and all(one[name] == other[name] for name in ("losses", "evaluations", "failure"))


def strayed(record: RunRecord, control: Outcome) -> str | None:
    """A sentence, if the control does not go the way that the run went: then the trouble is not in what was repeated.

    On the same machine it does so to the bit; elsewhere, and with other seeds, about.
    """
    was = {row["step"]: float(row.get("cross_entropy", row["loss"])) for row in record.train if "loss" in row}
    both = [(int(step), float(loss), was[step]) for step, loss in control["losses"] if step in was]
    off = sorted((_off(loss, before), step, loss, before) for step, loss, before in both)
    if not off or off[len(off) // 2][0] <= ASTRAY:
        return None
    _, step, loss, before = off[len(off) // 2]
    return (
        f"the control does not reproduce the run (at step {step} its loss is {loss:.4g} instead of {before:.4g}): the "
        "cause is not in the configuration, or has been fixed since"
    )


def _off(loss: float, before: float) -> float:
    if math.isfinite(loss) and math.isfinite(before):
        return abs(loss - before) / max(abs(before), 1e-9)
    return 0.0 if math.isfinite(loss) == math.isfinite(before) else math.inf


def _last(arm: Outcome) -> float:
    return arm["evaluations"][-1][1] if arm["evaluations"] else math.nan


def _curve(points: Sequence[Sequence[float]]) -> Curve:
    return [(int(step), float(value)) for step, value in points]


def _blocks(curve: Curve) -> Curve:
    size = max(1, math.ceil(len(curve) / BLOCKS))
    parts = [curve[start : start + size] for start in range(0, len(curve), size)]
    return [(part[-1][0], statistics.fmean(value for _, value in part)) for part in parts]
