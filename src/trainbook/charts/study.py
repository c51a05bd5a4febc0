"""Charts of studies: tuning and transfer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from trainbook.charts.figure import BLUE, COLOURS, GREEN, GREY, ORANGE, RED, new_figure, save, save_all

RATE = "optimizer.learning_rate"
BUCKETS = 8  # of an isolation plot, the best of each being marked

Facts = dict[str, Any]


def draw_study(facts: Facts, folder: Path) -> list[Path]:
    """From the answer of `trainbook tune --json`; returns the files that were drawn."""
    return save_all(study_figures(facts), folder)


def study_figures(facts: Facts) -> dict[str, Any]:
    figures = {}
    knobs = [each for each in facts["space"] if _points(facts, each)]
    if any(each["path"] == RATE for each in knobs):
        figures["learning-rate"] = _draw(facts, [each for each in knobs if each["path"] == RATE], True)
    if [each["path"] for each in knobs] not in ([], [RATE]):  # of the learning rate alone there is a picture already
        figures["isolation"] = _draw(facts, knobs, False)
    if len(knobs) > 1:
        figures["parallel"] = _parallel(facts, knobs)
    return figures


def _points(facts: Facts, knob: Facts) -> list[tuple[Any, float, bool]]:
    """Value, loss and whether it ended, of all that had this knob searched; the base at its own value, if that has a
    place on the scale: a decay of 0 has none on a log scale."""
    found = []
    for trial in facts["trials"]:
        if trial["kind"] == "repeat" or trial["loss"] is None:
            continue
        values = {**facts["base_values"], **trial["values"]} if trial["kind"] == "base" else trial["values"]
        if _has_place(knob, values.get(knob["path"])):
            found.append((values[knob["path"]], trial["loss"], trial["state"] == "done"))
    return found


def _draw(facts: Facts, knobs: list[Facts], is_curve: bool) -> Any:
    columns = min(3, len(knobs))
    rows = math.ceil(len(knobs) / columns)
    figure, axes = new_figure(rows, columns, width=5.5 * columns, height=4.2 * rows)
    for axis, knob in zip(axes.ravel(), knobs, strict=False):
        _isolated(axis, facts, knob)
        if is_curve:
            axis.set_title(
                "Loss by learning rate" if facts["metric"] == "loss" else f"{facts['metric']} by learning rate"
            )
    for axis in axes.ravel()[len(knobs) :]:
        axis.set_visible(False)
    return figure


def _isolated(axis: Any, facts: Facts, knob: Facts) -> None:
    """Each trial at its value, and the best of each bucket joined: what the knob allows, others being well set."""
    points = _points(facts, knob)
    places = [_place(knob, value) for value, _, _ in points]
    for is_done, colour, label in ((True, BLUE, "trial"), (False, GREY, "pruned")):
        chosen = [(p, loss) for p, (_, loss, done) in zip(places, points, strict=True) if done == is_done]
        if chosen:
            axis.scatter(*zip(*chosen, strict=True), s=18, color=colour, alpha=0.75, label=label, linewidths=0)
    best = _best_by_bucket(facts, knob, [(p, loss) for p, (_, loss, done) in zip(places, points, strict=True) if done])
    axis.plot([p for p, _ in best], [loss for _, loss in best], color=ORANGE, linewidth=1.6, label="best of its bucket")
    lost = [
        _place(knob, t["values"][knob["path"]])
        for t in facts["trials"]
        if t["state"] == "infeasible" and _has_place(knob, t["values"].get(knob["path"]))
    ]
    if lost:
        top = axis.get_ylim()[1]
        axis.scatter(lost, [top] * len(lost), marker="x", color=RED, s=24, label="infeasible")
    recommended = next(t["values"] for t in facts["trials"] if t["number"] == facts["recommended"])
    chosen = {**facts["base_values"], **recommended}.get(knob["path"])
    if _has_place(knob, chosen):
        axis.axvline(_place(knob, chosen), color=GREEN, linewidth=1, linestyle="--", label="recommended")
    axis.set_title(knob["path"])
    scale = {"log": " (log scale)", "log_one_minus": " (log scale of 1 − x)"}.get(knob["scale"], "")
    axis.set_xlabel(f"{knob['path'].split('.')[-1].replace('_', ' ')}{scale}")
    axis.set_ylabel(facts["metric"])
    _ticks(axis, knob, [value for value, _, _ in points])
    axis.legend(fontsize=8, frameon=False)


def _best_by_bucket(facts: Facts, knob: Facts, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if not points:
        return []
    low, high = min(p for p, _ in points), max(p for p, _ in points)
    width = (high - low) / BUCKETS or 1.0
    best: dict[int, tuple[float, float]] = {}
    sign = -1 if facts["higher_is_better"] else 1
    for place, loss in points:
        bucket = round(place) if knob["scale"] == "choice" else min(int((place - low) / width), BUCKETS - 1)
        if bucket not in best or sign * loss < sign * best[bucket][1]:
            best[bucket] = (place, loss)
    return [best[bucket] for bucket in sorted(best)]


def _has_place(knob: Facts, value: Any) -> bool:
    if value is None or knob["scale"] == "choice":
        return value is not None or None in knob["choices"]  # which may be one of them
    return value > 0 if knob["scale"] == "log" else value < 1 if knob["scale"] == "log_one_minus" else True


def _place(knob: Facts, value: Any) -> float:
    if knob["scale"] == "choice":
        choices = list(knob["choices"])
        return float(choices.index(value)) if value in choices else float(len(choices))
    if knob["scale"] == "log":
        return math.log10(value)
    return -math.log10(1 - value) if knob["scale"] == "log_one_minus" else float(value)


def _value(knob: Facts, place: float) -> float:
    if knob["scale"] == "log":
        return 10**place
    return 1 - 10**-place if knob["scale"] == "log_one_minus" else place


def _ends(knob: Facts, places: list[float]) -> tuple[float, float]:
    """Of an axis: the whole search range, and what was tried beyond it."""
    if knob["scale"] == "choice":
        return min(places), max(places)
    limits = [_place(knob, knob[end]) for end in ("low", "high") if _has_place(knob, knob[end])]
    return min([*limits, *places]), max([*limits, *places])


def _ticks(axis: Any, knob: Facts, values: list[Any]) -> None:
    if knob["scale"] == "choice":
        names = [*map(str, knob["choices"])]
        names += ["base"] if any(value not in knob["choices"] for value in values) else []
        axis.set_xticks(range(len(names)), names)
        return
    low, high = _ends(knob, [_place(knob, value) for value in values])
    axis.set_xlim(low - 0.04 * (high - low), high + 0.04 * (high - low)) if high > low else None
    marks = [low + (high - low) * share for share in (0, 0.25, 0.5, 0.75, 1)] if high > low else [low]
    if knob["scale"] == "log":
        marks = round_marks(low, high) or marks
    axis.set_xticks(marks, [_tick(knob, mark) for mark in marks])


def round_marks(low: float, high: float) -> list[float]:
    """Of a log scale, by powers of ten: the powers between two ends; 1, 2 and 5 times them, or 1 and 3, where these
    are few."""
    for steps in ((1,), (1, 3), (1, 2, 5)):
        powers = range(math.floor(low), math.ceil(high) + 1)
        found = [
            mark
            for power in powers
            for step in steps
            if low - 1e-9 <= (mark := power + math.log10(step)) <= high + 1e-9
        ]
        if len(found) >= 4:
            break
    every = max(1, math.ceil(len(found) / 8))
    return found[::every]


def _tick(knob: Facts, mark: float) -> str:
    if knob["scale"] == "log":
        value = f"{_value(knob, mark):.1g}"
        return value.replace("e-0", "e-").replace("e+0", "e")
    return f"{_value(knob, mark):.3g}" if knob["scale"] == "log_one_minus" else f"{_value(knob, mark):.2g}"


def _parallel(facts: Facts, knobs: list[Facts]) -> Any:
    """A line for each trial through its values, dark where it was good."""
    figure, axes = new_figure(1, 1, width=max(7.0, 2.4 * len(knobs)), height=4.6)
    axis = axes[0, 0]
    done = [t for t in facts["trials"] if t["kind"] != "repeat" and t["state"] == "done" and t["loss"] is not None]
    sign = -1 if facts["higher_is_better"] else 1
    # The best on top; above all the recommended one, which new seeds may have put before the best single loss.
    order = sorted(done, key=lambda trial: (trial["number"] == facts["recommended"], -sign * trial["loss"]))
    ends = []
    for knob in knobs:
        ends.append(_ends(knob, [_place(knob, value) for value, _, _ in _points(facts, knob)]))
    for rank, trial in enumerate(order):
        values = {**facts["base_values"], **trial["values"]}
        line = []
        for knob, (low, high) in zip(knobs, ends, strict=True):
            value = values.get(knob["path"])
            line.append(
                math.nan
                if not _has_place(knob, value)
                else (_place(knob, value) - low) / (high - low)
                if high > low
                else 0.5
            )
        goodness = (rank + 1) / len(order)
        axis.plot(
            range(len(knobs)),
            line,
            color=ORANGE if trial["number"] == facts["recommended"] else BLUE,
            alpha=0.08 + 0.9 * goodness**3,
            linewidth=1 + 1.5 * goodness**3,
        )
    for number, (knob, (low, high)) in enumerate(zip(knobs, ends, strict=True)):
        axis.axvline(number, color=GREY, linewidth=0.8)
        texts = (f"{_value(knob, low):.3g}", f"{_value(knob, high):.3g}")
        if knob["scale"] == "choice":
            texts = (str(knob["choices"][0]), str(knob["choices"][-1]))
        axis.text(number, -0.04, texts[0], ha="center", va="top", fontsize=8)
        axis.text(number, 1.03, texts[1], ha="center", va="bottom", fontsize=8)
    axis.set_xticks(range(len(knobs)), [knob["path"] for knob in knobs])
    axis.tick_params(axis="x", pad=16)
    axis.set_yticks([])
    axis.set_ylim(-0.1, 1.1)
    axis.spines["left"].set_visible(False)
    count = f"{len(done)} trial{'' if len(done) == 1 else 's'}"
    axis.set_title(f"{count}; darker is better by {facts['metric']}; recommended: trial {facts['recommended']}, orange")
    return figure


def draw_rate_range(facts: Facts, path: Path) -> None:
    """From the answer of `trainbook tune --rate-range --json`."""
    figure, axes = new_figure(1, 1, width=7.0, height=4.2)
    axis = axes[0, 0]
    axis.plot(facts["rates"], facts["losses"], color=GREY, linewidth=0.8, alpha=0.7, label="loss of the step")
    axis.plot(facts["rates"], facts["smooth"], color=BLUE, linewidth=1.8, label="smoothed")
    if facts["search"] is not None:
        axis.axvspan(*facts["search"], color=GREEN, alpha=0.15, label="range to search")
    axis.axvline(facts["configured"], color=ORANGE, linewidth=1.2, linestyle="--", label="as configured")
    axis.set_xscale("log")
    smooth = [value for value in facts["smooth"] if math.isfinite(value)]
    if smooth:
        spread = max(smooth[0] - min(smooth), 1e-9)
        axis.set_ylim(min(smooth) - 0.2 * spread, smooth[0] + 0.6 * spread)
    axis.set_xlabel("learning rate")
    axis.set_ylabel("training loss")
    axis.set_title("Learning-rate range test")
    axis.legend(fontsize=8, frameon=False)
    save(figure, path)


# Pictures of a transfer: sizes of activations by width, and losses by rate, a panel for each rule.


LINES = tuple(colour for colour in COLOURS if colour != GREY)
TITLES = {"standard": "standard", "mup": "muP", "as it is": "as it is"}
NAMES = {"width": "width", "depth": "layers", "length": "sequence length", "batch": "batch"}


def draw_coordinate_check(answer: dict[str, Any], path: Path) -> None:
    """From the answer of `trainbook transfer --coordinate-check --json`: sizes after the last update."""
    arms = answer["arms"]
    figure, axes = new_figure(1, len(arms), height=4.8)
    for axis, (arm, found) in zip(axes[0], arms.items(), strict=True):
        axis.set_title(f"{TITLES[arm]}: {_steepness(found)}")
        for number, (name, rows) in enumerate(found["sizes"].items()):
            colour, style = (GREY, ":") if name == "logits" else (LINES[number % len(LINES)], "-")
            axis.plot(answer["widths"], rows[-1], style, color=colour, marker="o", markersize=3, label=name)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xticks(answer["widths"], [str(width) for width in answer["widths"]])
        axis.set_xlabel("width")
        axis.set_ylabel(f"mean |x| after {answer['steps']} updates at {answer['learning_rate']:g}")
    _same_scales(axes[0])
    axes[0, -1].legend(fontsize=8, frameon=False)
    save(figure, path)


def draw_rates(answer: dict[str, Any], path: Path) -> None:
    """From the answer of `trainbook transfer --rates --json`."""
    save(rates_figure(answer), path)


def rates_figure(answer: dict[str, Any]) -> Any:
    """A line for each size, its best marked."""
    arms = answer["arms"]
    figure, axes = new_figure(1, len(arms), height=4.8)
    for axis, (arm, found) in zip(axes[0], arms.items(), strict=True):
        axis.set_title(f"{TITLES[arm]}: {_movement(found)}")
        for number, each in enumerate(found["sizes"]):
            colour = LINES[number % len(LINES)]
            points = [(rate, loss) for rate, loss in each["losses"] if loss is not None]
            label = f"{NAMES[answer['axis']]} {each['size']}"
            rates, losses = [rate for rate, _ in points], [loss for _, loss in points]
            axis.plot(rates, losses, color=colour, marker="o", markersize=3, label=label)
            if each["best_rate"] is not None:
                axis.plot(each["best_rate"], each["best_loss"], "*", color=colour, markersize=13)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("learning rate")
        axis.set_ylabel("validation loss (nats)")
    _same_scales(axes[0])
    axes[0, -1].legend(fontsize=9, frameon=False)
    return figure


def _steepness(found: dict[str, Any]) -> str:
    if not math.isfinite(found["largest_slope"]):
        return f"{found['largest_layer']} is not finite"
    flatness = "flat" if found["is_flat"] else "changes with the width"
    return f"largest slope {found['largest_slope']:+.2f}, {flatness}"


def _movement(found: dict[str, Any]) -> str:
    if found["shift"] is not None:
        return f"the optimum moves by {found['shift']:+.2f} in log2"
    at_edge = any(each["edge"] for each in found["sizes"])
    return (
        "a best learning rate is at the edge of the grid"
        if at_edge
        else "at some size training failed at every learning rate"
    )


def _same_scales(axes: Any) -> None:
    across, up = [axis.get_xlim() for axis in axes], [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_xlim(min(low for low, _ in across), max(high for _, high in across))
        axis.set_ylim(min(low for low, _ in up), max(high for _, high in up))
