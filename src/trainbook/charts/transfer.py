"""Pictures of a transfer: sizes of activations by width, and losses by rate, a panel for each rule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from trainbook.charts.comparison import COLOURS
from trainbook.charts.figure import GREY, new_figure, save

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
    """From the answer of `trainbook transfer --rates --json`: a line for each size, its best marked."""
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
    save(figure, path)


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
