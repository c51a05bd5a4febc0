"""Runs side by side: their curves, and how far each is from the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainbook.charts.figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure, save

COLOURS = (BLUE, ORANGE, GREEN, RED, GREY, "#CC79A7", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
AXES = {"steps": "steps", "tokens": "tokens", "time": "training time (s)", "epochs": "epochs"}

Facts = dict[str, Any]


def draw_comparison(facts: Facts, path: Path) -> None:
    """From the answer of `trainbook compare --json`."""
    has_difference = any(len(pairing["way"]) > 1 for pairing in facts["comparisons"])
    figure, axes = new_figure(1, 2 if has_difference else 1, height=4.6)
    _curves(axes[0, 0], facts)
    if has_difference:
        _differences(axes[0, 1], facts)
    save(figure, path)


def _curves(axis: Any, facts: Facts) -> None:
    """A group has a colour; its seeds have styles of line."""
    side = "training" if facts["split"] == "train" else "validation"
    axis.set_title(f"{side.capitalize()} {facts['metric']}")
    for number, group in enumerate(facts["groups"]):
        colour = COLOURS[number % len(COLOURS)]
        for repeat, run in enumerate(group["runs"]):
            points = facts["curves"][run]
            style = STYLES[repeat % len(STYLES)]
            marker = "o" if len(points) < 30 else None
            places, values = [place for place, _ in points], [value for _, value in points]
            axis.plot(places, values, style, color=colour, label=_name(run), marker=marker, markersize=3, linewidth=1.4)
    axis.set_xlabel(AXES[facts["by"]])
    axis.set_ylabel(facts["unit"] or facts["metric"])
    axis.legend(fontsize=9, frameon=False)


def _differences(axis: Any, facts: Facts) -> None:
    first = facts["comparisons"][0]["reference"]
    axis.set_title(f"Difference from {_name(first)}")
    axis.axhline(0, color=GREY, linewidth=1)
    for number, pairing in enumerate(facts["comparisons"], start=1):
        colour = COLOURS[number % len(COLOURS)]
        places = [point["at"] for point in pairing["way"]]
        axis.plot(
            places,
            [point["difference"] for point in pairing["way"]],
            color=colour,
            label=_name(pairing["other"]),
            marker="o",
        )
        if pairing["interval"] is not None:
            low, high = pairing["interval"]
            axis.vlines(pairing["at"], low, high, color=colour, linewidth=3, alpha=0.4, label="95 % interval")
    axis.set_xlabel(AXES[facts["by"]])
    axis.legend(fontsize=9, frameon=False)


def _name(text: str) -> str:
    """As it is: between two dollars matplotlib sees mathematics."""
    return text.replace("$", "\\$")
