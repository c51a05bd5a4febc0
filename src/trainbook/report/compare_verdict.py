"""The conclusion of a comparison in plain sentences, and its caveats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainbook.knobs.measured_on import MEASURED_ON
from trainbook.knobs.values import show
from trainbook.report.card import duration
from trainbook.report.compare import ComparedRun, Comparison, Group, Pairing, best_of
from trainbook.report.curves import NEAR, Curve
from trainbook.study.seeds import Estimate

# A difference of these changes the loss a little: which one is better can still be said.
NEARLY_THE_SAME = ("data.max_seq_length", "evaluation.eval_max_samples")
OF_THE_SOURCE = ("data.source", "data.validation_ratio")  # no matter where both validate on the same other source
OF_THE_TOKENS = ("data.tokenizer", "data.vocab_size")  # no matter where bytes are counted
ALSO_IN_TRAINING = ("training.label_smoothing", "training.z_loss", "model.dropout")
LENGTH = ("training.max_steps", "training.num_train_epochs", "training.max_tokens")
CHANCE = 0.05
COMMON = {"steps": "step", "tokens": "number of tokens", "time": "time", "epochs": "epoch"}

MOST_NAMED = 5  # runs in one remark


def conclusion(comparison: Comparison) -> str:
    sides = [side.label for group in comparison.groups for side in group.sides]
    if len(sides) < 2:
        return f"{f'Only {sides[0]}' if sides else 'No run'} has a finite {what(comparison)}: nothing to compare."
    if len(comparison.groups) == 1:
        return f"The runs differ only in the seed: {_spread(comparison, comparison.groups[0])}"
    paired = [pairing.other.label for pairing in comparison.pairings]
    apart = [group for group in comparison.groups[1:] if group.label not in paired]
    said = [_told_as_lost(comparison, side) for group in comparison.groups for side in group.sides if side.is_lost]
    said += [_sentence(comparison, pairing) for pairing in comparison.pairings]
    said += [_not_compared(comparison, comparison.groups[0], group) for group in apart]
    can_be = any(_tasks(comparison.groups[0], group) is None for group in apart)
    said += [_how_to_compare(comparison)] if can_be else []
    return " ".join(said)


def _spread(comparison: Comparison, group: Group) -> str:
    if group.end is None:
        return f"{_none_in_common(comparison)}: {_ends(comparison, group)}. {_how_to_compare(comparison)}"
    return f"their {what(comparison)} ranges from {number(min(group.values))} to {number(max(group.values))}."


def _none_in_common(comparison: Comparison) -> str:
    return f"there is no {COMMON[comparison.by]} at which all have a {what(comparison)}"


def _not_compared(comparison: Comparison, reference: Group, other: Group) -> str:
    ends = "; ".join(_ends(comparison, group) for group in (reference, other))
    if (tasks := _tasks(reference, other)) is not None:
        return (
            f"{other.label} and {reference.label} are not compared: their tasks are {tasks[1]} and {tasks[0]}, so "
            f"their {what(comparison)} does not measure the same ({ends})."
        )
    told = _reached_earlier(comparison, reference, other) or _reached_earlier(comparison, other, reference)
    said = f"{other.label} and {reference.label} are not compared: {_none_in_common(comparison)} ({ends})."
    return f"{said} {told}" if told else said


def _tasks(reference: Group, other: Group) -> tuple[str, str] | None:
    """Of two groups, where they differ: then no number of steps makes their losses comparable."""
    tasks = [str(group.sides[0].record.settings.get("training.task") or "") for group in (reference, other)]
    return (tasks[0], tasks[1]) if all(tasks) and tasks[0] != tasks[1] else None


def _ends(comparison: Comparison, group: Group) -> str:
    """What was measured of each run: the last value, and the best one if it is another."""
    told = []
    for side in group.sides[:MOST_NAMED]:
        assert side.curve is not None
        last = f"{side.label} ended with {number(side.curve.at(side.curve.end))}"
        text, best = f"{last} {place_text(comparison, side.curve.end)}", best_of(side, comparison.higher_is_better)
        if best is not None and best[0] != side.curve.end:
            text += f", its best was {number(best[1])} {place_text(comparison, best[0])}"
        told.append(text)
    return "; ".join([*told, *([f"and {len(group.sides) - MOST_NAMED} more"] if group.sides[MOST_NAMED:] else [])])


def _reached_earlier(comparison: Comparison, one: Group, later: Group) -> str:
    """Without a common place this much is measured: one was better at an earlier place than the other where it
    ended, and the other way round it was not."""
    if comparison.higher_is_better is None or comparison.split == "train" or len(one.sides) + len(later.sides) > 2:
        return ""
    if any(path not in NEARLY_THE_SAME for path in _measured_on(comparison, [one.label, later.label])):
        return ""
    earlier, end = _before_the_end(one.curves[0], later.curves[0]), later.curves[0].end
    reverse = _before_the_end(later.curves[0], one.curves[0])
    value = later.curves[0].at(end)
    if earlier is None or not _is_better(comparison, earlier[1], value):
        return ""
    if reverse is not None and _is_better(comparison, reverse[1], one.curves[0].at(one.curves[0].end)):
        return ""
    reached = f"{one.label} had {number(earlier[1])} {place_text(comparison, earlier[0])} already"
    word = _word(comparison, earlier[1] - value)
    return f"{reached}, which is {word} than the {number(value)} of {later.label} {place_text(comparison, end)}."


def _before_the_end(curve: Curve, other: Curve) -> tuple[float, float] | None:
    """The last place and value of a curve until another ends."""
    places = curve.places[curve.places <= other.end]
    return (places[-1].item(), curve.at(places[-1].item())) if len(places) else None


def _is_better(comparison: Comparison, value: float, than: float) -> bool:
    return value > than if comparison.higher_is_better else value < than


def _how_to_compare(comparison: Comparison) -> str:
    knob = "logging.logging_steps" if comparison.split == "train" else "evaluation.eval_steps"
    also = "" if comparison.by == "steps" else "compare them by steps, or "
    text = f"{also}train with the same {knob}, so that both have values at the same steps."
    return f"To compare them, {text}"


def _told_as_lost(comparison: Comparison, side: ComparedRun) -> str:
    assert side.curve is not None
    where = place_text(comparison, side.curve.end)
    return f"{side.label} has no finite {what(comparison)} after the one {where}."


def what(comparison: Comparison) -> str:
    """`validation loss`, `training grad_norm`."""
    return f"{'training' if comparison.split == 'train' else 'validation'} {comparison.metric}"


def place_text(comparison: Comparison, at: float) -> str:
    if comparison.by == "time":
        return f"after {seconds_text(at)}"
    if comparison.by == "epochs":
        return f"at epoch {at:.3g}"
    return f"at step {at:,.0f}" if comparison.by == "steps" else f"after {at:,.0f} tokens"


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def final_text(row: Mapping[str, Any]) -> str:
    """Of a row of `summary`."""
    return "not finite" if row["is_lost"] else number(row["final"])


def seconds_text(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2g}s" if seconds < 10 else duration(seconds)


def _sentence(comparison: Comparison, pairing: Pairing) -> str:
    reference, other = pairing.reference.label, pairing.other.label
    where = f"in {what(comparison)} {place_text(comparison, pairing.at)}"
    labels = [side.label for group in (pairing.reference, pairing.other) for side in group.sides]
    if changed := [path for path in _measured_on(comparison, labels) if path not in NEARLY_THE_SAME]:
        values = f"{number(pairing.values[1])} and {number(pairing.values[0])} {place_text(comparison, pairing.at)}"
        return (
            f"The {what(comparison)} of {other} and of {reference} cannot be compared ({values}): "
            f"{', '.join(changed)} differ{'s' * (len(changed) == 1)}."
        )
    if pairing.estimate is None:
        against = f"{number(pairing.values[1])} against {number(pairing.values[0])}"
        if pairing.difference == 0:
            return f"{other} and {reference} are equal {where} ({number(pairing.values[0])}). {_few_runs(pairing)}"
        by = f"{number(abs(pairing.difference))} {_word(comparison, pairing.difference)}"
        return f"{other} is {by} than {reference} {where} ({against}). {_few_runs(pairing)}"
    return _with_seeds(comparison, pairing, pairing.estimate, where)


def _measured_on(comparison: Comparison, labels: Sequence[str]) -> list[str]:
    """The knobs in which these runs differ and which decide what their values are measured on."""

    def differs(path: str) -> bool:
        values = [value for label, value in comparison.differences.get(path, {}).items() if label in labels]
        return any(value != values[0] for value in values[1:])

    found = [path for path in MEASURED_ON if differs(path)]
    settings = [side.record.settings for side in comparison.sides if side.label in labels]
    if comparison.split != "train" and not differs("data.validation") and settings[0].get("data.validation"):
        found = [path for path in found if path not in OF_THE_SOURCE]
    if comparison.metric == "bits_per_byte":
        found = [path for path in found if path not in OF_THE_TOKENS]
    return found


def _with_seeds(comparison: Comparison, pairing: Pairing, estimate: Estimate, where: str) -> str:
    reference, other = pairing.reference.label, pairing.other.label
    p = estimate.p if pairing.p is None else pairing.p
    runs = (
        f"{estimate.pairs} pairs of seeds"
        if estimate.pairs
        else f"{_runs(pairing.other)} and {_runs(pairing.reference)}"
    )
    several = f", corrected for {len(comparison.pairings)} comparisons" if len(comparison.pairings) > 1 else ""
    shown = f"95 % interval {number(estimate.low)} to {number(estimate.high)}, {runs}, p = {p:.2g}{several}"
    size = number(abs(estimate.mean))
    word = _word(comparison, estimate.mean)
    if not estimate.excludes_zero:
        reach = number(max(abs(estimate.low), abs(estimate.high)))
        said = f"No significant difference between {other} and {reference} {where}: {number(estimate.mean)} ({shown})."
        return f"{said} A difference of up to {reach} cannot be excluded."
    if p <= CHANCE:
        return f"{other} is {size} {word} than {reference} {where} ({shown})."
    least = f"the smallest that {runs} can reach" if p <= estimate.least_p * 1.001 else "too large to exclude chance"
    return f"{other} looks {size} {word} than {reference} {where} ({shown}): p is {least}. Repeat with more seeds."


def _word(comparison: Comparison, difference: float) -> str:
    """Lower or higher, and better or worse if the metric has a better direction."""
    height = "higher" if difference > 0 else "lower"
    if comparison.higher_is_better is None:
        return height
    return f"{height} ({'better' if (difference > 0) == comparison.higher_is_better else 'worse'})"


def _few_runs(pairing: Pairing) -> str:
    groups = (pairing.reference, pairing.other)
    if all(len(group.sides) == 1 for group in groups):
        return "One run each: the spread over seeds is unknown."
    (alone, _), (repeated, values) = sorted(
        zip(groups, pairing.runs, strict=True), key=lambda found: len(found[0].sides)
    )
    spread = f"{number(min(values))} to {number(max(values))}"
    return f"One run of {alone.label}: its spread over seeds is unknown; {repeated.label} ranges from {spread} there."


def why_no_interval(pairing: Pairing) -> str:
    alone = [group.label for group in (pairing.other, pairing.reference) if len(group.sides) == 1]
    return "one run each" if len(alone) > 1 else f"one run of {alone[0]}"


def _runs(group: Group) -> str:
    return f"{len(group.sides)} runs of {group.label}"


def remarks(comparison: Comparison) -> list[str]:
    """Caveats that a reader should know."""
    notes = [note for side in comparison.sides for note in _of_a_run(comparison, side)]
    differ = comparison.differences
    changed = _measured_on(comparison, [side.label for side in comparison.sides])
    changed += [path for path in ALSO_IN_TRAINING if comparison.split == "train" and path in differ]
    if changed:
        notes.append(f"the runs measure different things: {', '.join(changed)} differ{'s' * (len(changed) == 1)}")
    lengths = [path for path in LENGTH if path in differ]
    if lengths and {side.record.settings.get("schedule.type") for side in comparison.sides} != {"constant"}:
        shown = ", ".join(
            f"{path} {' and '.join(sorted({show(v) for v in differ[path].values()}))}" for path in lengths
        )
        notes.append(f"their schedules have different lengths ({shown}): at the same step, their learning rates differ")
    for pairing in comparison.pairings:
        sides = (*pairing.reference.sides, *pairing.other.sides)
        longest = max(side.curve.end for side in sides if side.curve is not None)
        names = f"{pairing.other.label} and {pairing.reference.label}"
        if longest > 1.01 * pairing.at:
            where = place_text(comparison, pairing.at)
            notes.append(f"{names} are compared {where}, {_what_ends(comparison, pairing)}")
        if not pairing.is_exact:
            near = f"values at most {NEAR:.0%} apart in {comparison.by}"
            notes.append(f"{names} have no values at exactly the same {COMMON[comparison.by]}: compared are {near}")
        if comparison.by == "steps" and (applied := _applied_updates(pairing)):
            notes.append(applied)
    if comparison.split == "train" and len({side.record.facts.get("loss_is") for side in comparison.sides}) > 1:
        notes.append("the Hugging Face Trainer logs means since the previous row, the other runs single steps")
    notes += _same_seed(comparison)
    return notes


def _applied_updates(pairing: Pairing) -> str:
    """Where a step is not the same number of updates: rejected ones are steps as well."""
    sides = (*pairing.reference.sides, *pairing.other.sides)
    known = {side.label: count for side in sides if (count := _applied_at(side, pairing.at)) is not None}
    if len(known) < len(sides) or len(set(known.values())) < 2:
        return ""
    told = [f"{label} {count:,}" for label, count in list(known.items())[:MOST_NAMED]]
    more = f" and {len(known) - MOST_NAMED} more runs" if len(known) > MOST_NAMED else ""
    counts = f"{', '.join(told)}{more}" if more else " and ".join([", ".join(told[:-1]), told[-1]])
    return f"at step {pairing.at:,.0f} the runs have not applied the same number of updates: {counts}"


def _applied_at(side: ComparedRun, step: float) -> int | None:
    """By the last row until then, and the events after it."""
    steps, applied = side.record.rows("train").columns("step", "applied_updates")
    until = int(np.searchsorted(steps, step, "right"))
    if not until or not np.isfinite(applied[until - 1]):
        return None
    row = steps[until - 1]
    skipped = sum(e.get("kind") == "skip" and row < e.get("step", 0) <= step for e in side.record.events)
    return int(applied[until - 1] + step - row) - skipped


def _what_ends(comparison: Comparison, pairing: Pairing) -> str:
    sides = (*pairing.reference.sides, *pairing.other.sides)
    shortest = min(side.curve.end for side in sides if side.curve is not None)
    if shortest > pairing.at * (1 + (0 if comparison.by == "steps" else NEAR)):
        return f"the last {COMMON[comparison.by]} at which all have a {what(comparison)}"
    lost = [side.label for side in sides if side.is_lost]
    ends = [side.label for side in sides if side.curve is not None and side.curve.end == pairing.at]
    if lost_first := [label for label in ends if label in lost]:
        return f"the last one of {_together(lost_first) if len(lost_first) > 1 else lost_first[0]} that is finite"
    return "where the shorter run ends"


def _of_a_run(comparison: Comparison, side: ComparedRun) -> list[str]:
    notes = []
    if side.curve is None:
        logged = side.record.rows(comparison.split).has(comparison.metric)
        kind = "no finite" if logged else "no"
        notes.append(f"{side.label} logged {kind} {what(comparison)} and is left out of the comparison")
    if side.ended_without_a_number and (side.curve is not None or comparison.split != "train"):
        notes.append(f"{side.label} ended with a training loss of NaN or infinity; such rows are left out")
    if not side.record.settings:
        notes.append(f"{side.label}: its settings are unknown, so differences in settings cannot be shown")
    if side.record.facts.get("status") == "running":
        notes.append(f"{side.label} is not finished")
    return notes


def _same_seed(comparison: Comparison) -> list[str]:
    """Runs with the same settings and the same seed, which are no independent evidence."""
    alike: dict[tuple[object, int], list[str]] = {}
    for side in comparison.sides:
        if side.seed is not None and side.what_counts:
            alike.setdefault((side.what_counts, side.seed), []).append(side.label)
    return [
        f"{_together(labels)} have the same settings and the same seed: no new evidence"
        for labels in alike.values()
        if len(labels) > 1
    ]


def _together(labels: list[str]) -> str:
    if len(labels) > MOST_NAMED:
        return f"{', '.join(labels[:MOST_NAMED])} and {len(labels) - MOST_NAMED} more"
    return f"{', '.join(labels[:-1])} and {labels[-1]}"
