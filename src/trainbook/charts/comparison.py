"""Charts of runs side by side: their curves, and how far each setting is from the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainbook.charts.figure import AXES, COLOURS, STYLES, Facts, draw_differences, new_figure, plain_name

STRETCHES = 400  # of a curve: more than a chart has room for
FEW = 30  # points that are drawn one by one
SPAN = 30.0  # from the lowest to the highest value: a wider one is drawn on a log scale


@dataclass(frozen=True)
class DrawnRun:
    """Places and values, in the order of places; all finite."""

    name: str
    places: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class DrawnGroup:
    """Runs that differ in the seed alone; with several of them, their mean and range at some places."""

    name: str
    runs: Sequence[DrawnRun]
    band: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None  # places, mean, lowest, highest


def curves_figure(groups: Sequence[DrawnGroup], title: str, by: str, unit: str) -> Any:
    """A group has a colour, its runs have styles of line."""
    figure, axes = new_figure(1, 1, width=11, height=4.2)
    axis = axes[0, 0]
    axis.set_title(title)
    for number, group in enumerate(groups):
        colour = COLOURS[number % len(COLOURS)]
        for repeat, run in enumerate(group.runs):
            places, values = extremes(run.places, run.values)
            style = STYLES[repeat % len(STYLES)]
            marker = "o" if len(places) < FEW else None
            faint = {"linewidth": 0.8, "alpha": 0.6} if group.band is not None else {"linewidth": 1.3}
            axis.plot(
                places, values, style, color=colour, label=plain_name(run.name), marker=marker, markersize=3, **faint
            )
        if group.band is not None:
            places, mean, low, high = group.band
            axis.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
            label = f"mean of {len(group.runs)}: {plain_name(group.name)}"
            axis.plot(places, mean, color=colour, linewidth=2.2, label=label)
    every = np.concatenate([run.values for group in groups for run in group.runs])
    if len(every) and every.min() > 0 and every.max() > SPAN * every.min():
        axis.set_yscale("log")
    axis.set_xlabel(AXES[by])
    axis.set_ylabel(unit)
    axis.legend(fontsize=9, frameon=False)
    return figure


def extremes(places: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All points of a short curve; of a long one the lowest and highest of each stretch, in their order."""
    if len(places) <= 2 * STRETCHES:
        return places, values
    span = float(places[-1] - places[0]) or 1.0
    stretch = np.minimum(((places - places[0]) / span * STRETCHES).astype(int), STRETCHES - 1)
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    ends = np.append(starts[1:], len(places))
    chosen = set()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        chosen |= {start + int(np.argmin(values[start:end])), start + int(np.argmax(values[start:end]))}
    kept = np.array(sorted(chosen))
    return places[kept], values[kept]


def differences_figure(facts: Facts) -> Any:
    """From the answer of `trainbook compare --json`, which has two settings or more."""
    figure, axes = new_figure(1, 1, width=11, height=3.6)
    draw_differences(axes[0, 0], facts)
    axes[0, 0].set_ylabel(facts["unit"] or facts["metric"])
    return figure
