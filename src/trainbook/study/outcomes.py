"""What the arms of a try are compared on: the loss, or for other symptoms the speed, the memory, or that it runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trainbook.runs.run_record import RunRecord
from trainbook.study.verdict import (
    Curve,
    RemedyComparison,
    Verdict,
    compare_growth,
    compare_scatter,
    compare_seeds,
    compare_speeds,
)

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
    curves = [tuple(_losses(arm, is_evaluated) for arm in pair) for pair in pairs]
    return compare_seeds(name, [(control, remedy) for control, remedy in curves], looks)


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
