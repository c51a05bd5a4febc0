"""Charts of a run by step: loss, learning rate, gradient norm, speed, and where the guard acted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainbook.charts.figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure
from trainbook.runs.columns import are_numbers
from trainbook.runs.table import TableRows

STRETCHES = 400  # of a curve: more than a chart has room for
MOST_MARKS = 60  # of one kind
SPAN = 30.0  # from the lowest to the highest value: a wider one is drawn on a log scale
MARKS = {  # events that are marked: their name, colour, and line or marker at the bottom
    "skip": ("update rejected", RED, ":"),
    "rollback": ("rolled back to", RED, "-"),
    "quarantine": ("samples quarantined", ORANGE, "^"),
    "remedy": ("learning rate lowered", GREEN, "-."),
    "oom": ("out of memory", GREY, "-."),
    "resume": ("resumed", GREY, ":"),
}


@dataclass(frozen=True)
class Trace:
    """Steps and finite values of a metric; of very many rows the lowest and highest of each stretch of steps."""

    steps: np.ndarray
    values: np.ndarray
    lost: np.ndarray  # steps at which it is not finite

    def __bool__(self) -> bool:
        return bool(len(self.steps) or len(self.lost))


def trace(rows: TableRows, name: str) -> Trace:
    if not rows:
        return Trace(*np.zeros((3, 0)))
    first, width = rows[0]["step"], rows.last_step - rows[0]["step"] + 1
    if len(rows) <= 2 * STRETCHES:
        steps, values = (np.concatenate(part) for part in zip(*rows.blocks("step", name), strict=True))
        known, finite = are_numbers(values), np.isfinite(values)
        return Trace(steps[known & finite], values[known & finite], steps[known & ~finite])
    lows, highs = np.full(STRETCHES, np.inf), np.full(STRETCHES, -np.inf)
    lost = np.zeros(STRETCHES, dtype=bool)
    for steps, values in rows.blocks("step", name):
        places = np.clip((steps - first) * STRETCHES // width, 0, STRETCHES - 1).astype(int)
        known, finite = are_numbers(values), np.isfinite(values)
        np.minimum.at(lows, places[known & finite], values[known & finite])
        np.maximum.at(highs, places[known & finite], values[known & finite])
        lost[places[known & ~finite]] = True
    middles = first + (np.arange(STRETCHES) + 0.5) * width / STRETCHES
    has = lows <= highs
    return Trace(np.repeat(middles[has], 2), np.stack([lows[has], highs[has]], axis=1).ravel(), middles[lost])


def loss_figure(
    train: Trace, evaluations: Trace, best: int | None, events: Mapping[str, Sequence[int]], name: str = "loss"
) -> Any:
    """`best` is the step of the best evaluation; `events` has steps by kind. Also of another metric, by its name."""
    figure, axis = _new_chart(name)
    _draw(axis, train, color=BLUE, linewidth=0.9, label="training")
    _draw(axis, evaluations, color=ORANGE, marker="o" if len(evaluations.steps) < 40 else None, label="validation")
    if best is not None and best in evaluations.steps:
        value = evaluations.values[np.flatnonzero(evaluations.steps == best)[-1]]
        axis.plot([best], [value], "*", color=GREEN, markersize=11, zorder=5, label="best")
    return _finished(figure, axis, [train, evaluations], events)


def metric_figure(
    name: str,
    drawn: Trace,
    colour: str = BLUE,
    events: Mapping[str, Sequence[int]] | None = None,
    clip: float | None = None,
) -> Any:
    """`clip` is where gradients are clipped."""
    figure, axis = _new_chart(name)
    _draw(axis, drawn, color=colour, linewidth=0.9)
    if clip is not None:
        axis.axhline(clip, color=GREY, linestyle="--", linewidth=1, label=f"clipped above {clip:g}")
    return _finished(figure, axis, [drawn], events or {}, is_from_zero=events is None)


def _new_chart(name: str) -> tuple[Any, Any]:
    figure, axes = new_figure(1, 1, width=5.8, height=3.3)
    axes[0, 0].set_xlabel("step")
    axes[0, 0].set_ylabel(name)
    return figure, axes[0, 0]


def _draw(axis: Any, drawn: Trace, **style: Any) -> None:
    if len(drawn.steps):
        style["marker"] = style.get("marker") or ("o" if len(drawn.steps) == 1 else None)
        axis.plot(drawn.steps, drawn.values, markersize=3, **style)


def _finished(
    figure: Any, axis: Any, drawn: Sequence[Trace], events: Mapping[str, Sequence[int]], is_from_zero: bool = False
) -> Any:
    values = np.concatenate([each.values for each in drawn])
    if len(values) and values.min() > 0 and values.max() > SPAN * values.min() and not is_from_zero:
        axis.set_yscale("log")
    elif is_from_zero:
        axis.set_ylim(bottom=min(0.0, *values), top=1.05 * max(values, default=1.0) or 1.0)
    lost = np.concatenate([each.lost for each in drawn])
    if len(lost):
        place = axis.get_xaxis_transform()
        axis.plot(
            lost, np.ones(len(lost)), "v", color=RED, markersize=5, transform=place, clip_on=False, label="not finite"
        )
    for kind, (name, colour, line) in MARKS.items():
        steps = sorted(set(events.get(kind, ())))
        for number, step in enumerate(steps[:: max(1, -(-len(steps) // MOST_MARKS))]):
            label = f"{name} ({len(events[kind]):,})" if number == 0 else None
            if line == "^":
                axis.plot(
                    [step], [0], line, color=colour, transform=axis.get_xaxis_transform(), clip_on=False, label=label
                )
            else:
                axis.axvline(step, color=colour, linestyle=line, linewidth=1, alpha=0.7, zorder=1, label=label)
    if axis.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    from matplotlib.ticker import FuncFormatter

    axis.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    return figure
