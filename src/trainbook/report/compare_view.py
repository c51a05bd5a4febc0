"""A comparison as JSON, and as terminal output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from trainbook.knobs.measured_on import MEASURED_ON
from trainbook.knobs.values import show
from trainbook.report.card import LEVELS, duration
from trainbook.report.compare import ASIDE, SEED, ComparedRun, Comparison, Group, Pairing, summary, value_text
from trainbook.report.curves import Curve
from trainbook.runs.run_record import counted
from trainbook.runs.schema import METRICS
from trainbook.study.seeds import Estimate

if TYPE_CHECKING:
    from rich.console import Console


# The conclusion of a comparison in plain sentences, and its caveats.


# A difference of these changes the loss a little: which one is better can still be said.
NEARLY_THE_SAME = ("data.max_seq_length", "evaluation.eval_max_samples")
OF_THE_SOURCE = ("data.source", "data.validation_ratio")  # no matter where both validate on the same other source
OF_THE_TOKENS = ("data.tokenizer", "data.vocab_size")  # no matter where bytes are counted
ALSO_IN_TRAINING = ("training.label_smoothing", "training.z_loss", "model.dropout")
LENGTH = ("training.max_steps", "training.num_train_epochs", "training.max_tokens")
CHANCE = 0.05

MOST_NAMED = 5  # runs in one remark


def conclusion(comparison: Comparison) -> str:
    sides = [side.label for group in comparison.groups for side in group.sides]
    if len(sides) < 2:
        return f"{f'Only {sides[0]}' if sides else 'No run'} has a finite {what(comparison)}: nothing to compare."
    if len(comparison.groups) == 1:
        curves = [side.curve for side in comparison.groups[0].sides if side.curve is not None]
        values = [curve.at(min(curve.end for curve in curves)) for curve in curves]
        spread = f"from {number(min(values))} to {number(max(values))}"
        return f"The runs differ only in the seed: their {what(comparison)} ranges {spread}."
    paired = [pairing.other.label for pairing in comparison.pairings]
    apart = [group.label for group in comparison.groups[1:] if group.label not in paired]
    said = [_told_as_lost(comparison, side) for group in comparison.groups for side in group.sides if side.is_lost]
    said += [_sentence(comparison, pairing) for pairing in comparison.pairings]
    first = comparison.groups[0].label
    said += [
        f"{label} and {first} have no {what(comparison)} at a common point: nothing to compare." for label in apart
    ]
    return " ".join(said)


def _told_as_lost(comparison: Comparison, side: ComparedRun) -> str:
    assert side.curve is not None
    where = place_text(comparison, side.curve.end)
    return f"{side.label} has no finite {what(comparison)} after the one {where}."


def what(comparison: Comparison) -> str:
    """`validation loss`, `training grad_norm`."""
    return f"{'training' if comparison.split == 'train' else 'validation'} {comparison.metric}"


def place_text(comparison: Comparison, at: float) -> str:
    if comparison.by == "time":
        return f"after {_seconds(at)}"
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


def _seconds(seconds: float | None) -> str:
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
    alone, repeated = sorted(groups, key=lambda group: len(group.sides))
    values = [side.curve.at(pairing.at) for side in repeated.sides if side.curve is not None]
    spread = f"{number(min(values))} to {number(max(values))}"
    return f"One run of {alone.label}: its spread over seeds is unknown; {repeated.label} ranges from {spread} there."


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
        if longest > 1.01 * pairing.at:
            names = f"{pairing.other.label} and {pairing.reference.label}"
            notes.append(f"{names} are compared {place_text(comparison, pairing.at)}, {_what_ends(pairing)}")
    if comparison.split == "train" and len({side.record.facts.get("loss_is") for side in comparison.sides}) > 1:
        notes.append("the Hugging Face Trainer logs means since the previous row, the other runs single steps")
    notes += _same_seed(comparison)
    return notes


def _what_ends(pairing: Pairing) -> str:
    sides = (*pairing.reference.sides, *pairing.other.sides)
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


WIDTH = 40
LOGGED_BY = "logged by"
NAME_WIDTH, GAP = 10, 3  # columns of the terminal that a name needs, and that lie between two columns of a table
NARROW = 80  # columns of a terminal that has no room for wide gaps
MOST_POINTS = 400  # of a curve in the answer
MOST_VALUE = 28  # letters


def as_json(comparison: Comparison) -> dict[str, Any]:
    metric = METRICS.get(comparison.metric)
    return {
        "metric": comparison.metric,
        "split": comparison.split,
        "unit": metric.unit if metric else None,
        "higher_is_better": comparison.higher_is_better,
        "by": comparison.by,
        "runs": [summary(side, comparison.higher_is_better) for side in comparison.sides],
        "differences": {path: dict(values) for path, values in comparison.differences.items()},
        "groups": [_group(group) for group in comparison.groups],
        "comparisons": [_pairing(pairing) for pairing in comparison.pairings],
        "missing": dict(comparison.missing),
        "remarks": remarks(comparison),
        "conclusion": conclusion(comparison),
        "curves": {side.label: _points(side.curve) for side in comparison.sides if side.curve is not None},
    }


def _group(group: Group) -> dict[str, Any]:
    """Runs of one setting, with the mean and the standard deviation over seeds where the shortest of them ends."""
    values = group.at(group.end)
    return {
        "name": group.label,
        "runs": [side.label for side in group.sides],
        "at": group.end,
        "mean": fmean(values),
        "standard_deviation": stdev(values) if len(values) > 1 else None,
    }


def _pairing(pairing: Pairing) -> dict[str, Any]:
    estimate = pairing.estimate
    return {
        "reference": pairing.reference.label,
        "other": pairing.other.label,
        "at": pairing.at,
        "values": list(pairing.values),
        "difference": pairing.difference,
        "way": [{"at": at, "difference": difference} for at, difference in pairing.way],
        "interval": [estimate.low, estimate.high] if estimate else None,
        "pairs": estimate.pairs if estimate else None,
        "p": estimate.p if estimate else None,
        "p_corrected": pairing.p,
        "p_is_exact": estimate.is_exact if estimate else None,
    }


def _points(curve: Curve) -> list[list[float]]:
    """Of a long one so many stretches, each with its mean."""
    size = -(-len(curve.places) // MOST_POINTS)
    starts = range(0, len(curve.places), size)
    ends = [min(at + size, len(curve.places)) - 1 for at in starts]
    means = [fmean(curve.values[at : at + size].tolist()) for at in starts]
    return [[place, mean] for place, mean in zip(curve.places[ends].tolist(), means, strict=True)]


def render(comparison: Comparison, console: Console) -> None:
    _print_runs(comparison, console)
    _print_differences(comparison, console)
    _print_groups(comparison, console)
    if comparison.groups:
        _print_curves(comparison, console)
    _print_way(comparison, console)
    for label, names in comparison.missing.items():
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        console.print(f"  not logged by {label}: {shown}", style="dim", highlight=False)
    for remark in remarks(comparison):
        console.print(f"  note: {remark}.", highlight=False)
    console.print()
    console.print(conclusion(comparison), highlight=False, style="bold")


def _print_runs(comparison: Comparison, console: Console) -> None:
    rows = [summary(side, comparison.higher_is_better) for side in comparison.sides]
    has_best = any(row["best"] is not None for row in rows)
    is_mixed = any(row["from"] != "Trainbook" for row in rows)
    units = [counted(side.record.facts) for side in comparison.sides]
    unit = units[0] if len(set(units)) == 1 else "tokens"
    columns = ["steps", unit, "time", f"{unit}/s", f"final {comparison.metric}"]
    table = _table("run", [*columns, *["best"] * has_best, *[LOGGED_BY] * is_mixed])
    table.title = f"{what(comparison)}, by {comparison.by}"
    for row, its_unit in zip(rows, units, strict=True):
        count = ["–" if row[name] is None else f"{row[name]:,.0f}" for name in ("steps", "tokens", "tokens_per_second")]
        if its_unit != unit:
            count[1:] = [f"{count[1]} {its_unit}", f"{count[2]} {its_unit}/s"]
        cells = [row["name"], count[0], count[1], _seconds(row["seconds"]), count[2], final_text(row)]
        cells += [number(row["best"])] * has_best + [row["from"]] * is_mixed
        table.add_row(*cells)
    _keep_numbers_whole(table, console)
    console.print(table)


def _print_differences(comparison: Comparison, console: Console) -> None:
    console.print()
    if not comparison.differences:
        known = all(side.record.settings for side in comparison.sides)
        console.print(f"  settings: no knob differs{'' if known else ' among those that are known'}", highlight=False)
        return
    aside = [path for path in comparison.differences if path.startswith(ASIDE) and path != SEED]
    without_effect = f"without effect on the result: {', '.join(aside)}"
    if len(aside) == len(comparison.differences):
        console.print(f"  settings: no knob differs but those {without_effect}", highlight=False)
        return
    groups = [(group.label, [side.label for side in group.sides]) for group in comparison.groups]
    groups += [(side.label, [side.label]) for side in comparison.sides if side.curve is None]
    table = _table("knob that differs", [label for label, _ in groups], justify="left")
    for path, values in comparison.differences.items():
        if path not in aside:
            table.add_row(path, *(_values(path, values, runs) for _, runs in groups))
    console.print(table)
    if aside:
        console.print(f"  and, {without_effect}", style="dim", highlight=False)


def _values(path: str, values: Mapping[str, Any], runs: list[str]) -> str:
    """The values of runs that differ only in the seed and in knobs without effect on the result."""
    return ", ".join(dict.fromkeys(_value(path, values, run) for run in runs))


def _value(path: str, values: Mapping[str, Any], label: str) -> str:
    if label not in values:
        return "unknown"
    text = value_text(path, values[label])
    return text if len(text) <= MOST_VALUE else f"{text[: MOST_VALUE - 1]}…"


def _print_groups(comparison: Comparison, console: Console) -> None:
    """If settings were repeated: the mean and the spread over seeds of each."""
    if not comparison.has_repeats:
        return
    table = _table("setting", ["runs", "mean", "standard deviation", "lowest", "highest", "where"])
    table.title = f"{what(comparison)}, by setting"
    for group in comparison.groups:
        values = group.at(group.end)
        deviation = number(stdev(values)) if len(values) > 1 else "–"
        shown = [number(fmean(values)), deviation, number(min(values)), number(max(values))]
        shown.append(place_text(comparison, group.end))
        table.add_row(group.label, str(len(values)), *shown)
    _keep_numbers_whole(table, console)
    console.print(table)


def _print_curves(comparison: Comparison, console: Console) -> None:
    """All on one scale, so that their heights can be compared."""
    sides = [(side, side.curve) for side in comparison.sides if side.curve is not None]
    low, high = (float(end([end(curve.values) for _, curve in sides])) for end in (np.min, np.max))
    last = max(curve.end for _, curve in sides)
    longest = max(len(side.label) for side, _ in sides)
    scale = f"{LEVELS[0]} {number(low)}, {LEVELS[-1]} {number(high)}; right end: {place_text(comparison, last)}"
    # On a narrow terminal the curves are shorter; beside a long name, below it.
    is_beside = longest + len(scale) + 5 <= console.width
    name = longest if is_beside else 0
    width = min(WIDTH, console.width - name - 5)
    console.print()
    for side, curve in sides:
        if not is_beside:
            console.print(f"  {side.label}", highlight=False)
        console.print(f"  {side.label if is_beside else '':<{name}}  {_blocks(curve, last, low, high, width)}")
    console.print(f"  {'':<{name}}  {scale}", style="dim", highlight=False)


def _blocks(curve: Curve, last: float, low: float, high: float, width: int = WIDTH) -> str:
    """A block for each stretch, at the height of its mean; where nothing was logged, the one before goes on."""
    places = (curve.places / last * width).astype(int) if last else np.zeros(len(curve.places), int)
    bounds = np.searchsorted(np.minimum(places, width - 1), np.arange(width + 1))  # in rising order
    shown, before = "", " "
    for number_, (first, end) in enumerate(pairwise(bounds.tolist())):
        if number_ / width * last > curve.end:
            break
        if first < end:
            share = (fmean(curve.values[first:end].tolist()) - low) / (high - low) if high > low else 0.0
            before = LEVELS[round(share * (len(LEVELS) - 1))]
        shown += before
    return shown


def _print_way(comparison: Comparison, console: Console) -> None:
    for pairing in comparison.pairings:
        shown = pairing.way if len(pairing.way) <= 4 else pairing.way[-1::-2][::-1]
        steps = ", ".join(f"{difference:+.4g} {place_text(comparison, at)}" for at, difference in shown)
        console.print()
        text = f"  {pairing.other.label} minus {pairing.reference.label}: {steps}"
        console.print(text, highlight=False)


def _table(first: str, columns: list[str], justify: Any = "right") -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=True)
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify=justify, overflow="fold")
    return table


def _keep_numbers_whole(table: Any, console: Console) -> None:
    """On a narrow terminal names and titles take more lines; a number that is cut off says something else."""
    room = console.width - NAME_WIDTH
    for column in table.columns[1:]:
        if column.header != LOGGED_BY:
            column.min_width = max(len(str(cell)) for cell in column.cells)
            room -= column.min_width + GAP
    for column in table.columns[1:]:  # whose words stay whole where there is room for them
        if column.header == LOGGED_BY:
            longest = max(len(word) for cell in column.cells for word in str(cell).split())
            column.min_width = longest if longest + GAP <= room else None
    if console.width < NARROW:
        table.padding = (0, 1, 0, 0)
