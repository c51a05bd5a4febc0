"""Charts of an ablation: effects with their intervals, loss against learning rate, curves with their bands."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from trainbook.charts.figure import BLUE, COLOURS, GREEN, GREY, RED, new_figure, save_all

VERDICTS = {"better": GREEN, "worse": RED, "equivalent": BLUE, "no evidence": GREY}
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
MOST_ARMS = 8  # with a colour of their own
MOST_MARKS = 5  # on the axis of learning rates, beside each other

Facts = dict[str, Any]


def draw_ablation(facts: Facts, folder: Path) -> list[Path]:
    """From the answer of `trainbook ablate --json`; returns the files that were drawn."""
    return save_all(ablation_figures(facts), folder)


def ablation_figures(facts: Facts) -> dict[str, Any]:
    figures = {}
    if any(each["effect"] for each in facts["arms"]):
        figures["effects"] = effects_figure(facts)
    if len(facts["rates"]) > 1:
        figures["rates"] = rates_figure(facts)
    if any(each["rows"] for each in facts["curves"]):
        figures["curves"] = _curves(facts)
    return figures


def effects_figure(facts: Facts) -> Any:
    """Each arm's effect with its interval, and small markers for the data sets. Within the shaded band an effect does
    not matter, as was said before the study."""
    arms = [each for each in facts["arms"] if each["effect"]]
    figure, axes = new_figure(1, 1, width=9.0, height=1.7 + 0.42 * len(arms))
    axis = axes[0, 0]
    factor = 100.0 if facts["scale"] == "share" else 1.0
    epsilon = factor * facts["epsilon"]
    axis.axvspan(-epsilon, epsilon, color=BLUE, alpha=0.08, linewidth=0)
    axis.axvline(0, color=GREY, linewidth=1)
    for row, arm in enumerate(reversed(arms)):
        effect, colour = arm["effect"], VERDICTS[arm["verdict"]]
        low, mean, high = (factor * effect[name] for name in ("low", "mean", "high"))
        axis.plot([low, high], [row, row], color=colour, linewidth=1.2, solid_capstyle="butt")
        inner = [factor * effect[name] for name in ("low_90", "high_90")]
        axis.plot(inner, [row, row], color=colour, linewidth=3.2, solid_capstyle="butt")
        axis.plot([mean], [row], "o", color=colour, markersize=7)
        for number, each in enumerate(arm["by_data"]):
            if each["effect"] and len(facts["data"]) > 1:
                marker = MARKERS[number % len(MARKERS)]
                axis.plot(
                    [factor * each["effect"]["mean"]], [row - 0.28], marker, color=colour, markersize=3.5, alpha=0.7
                )
    axis.set_yticks(range(len(arms)), [f"{_name(each['name'])}: {each['verdict']}" for each in reversed(arms)])
    axis.set_ylim(-0.7, len(arms) - 0.3)
    unit = "% of the control's" if facts["scale"] == "share" else "points of"
    side = "right" if facts["higher_is_better"] else "left"
    axis.set_xlabel(f"difference from the control, {unit} {facts['metric']} (better on the {side})")
    # Over the whole figure: beside long names of arms the axes are narrower than this.
    figure.suptitle("Effect of each arm with 90 % (thick) and 95 % intervals; shaded: too small to matter", fontsize=11)
    if len(facts["data"]) > 1:
        for number, data in enumerate(facts["data"]):
            axis.plot([], [], MARKERS[number % len(MARKERS)], color=GREY, markersize=4, label=_name(data))
        axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="data set")
    return figure


def rates_figure(facts: Facts) -> Any:
    figure, axes = _grid(facts)
    for axis, data in zip(axes, facts["data"], strict=False):
        for number, arm in enumerate(_shown_arms(facts)):
            cell = next(each for each in arm["by_data"] if each["data"] == data)
            points = []
            for rate, losses in cell["by_rate"].items():
                known = [each for each in losses if each is not None]
                if known and len(known) == len(losses):
                    points.append((float(rate), sum(known) / len(known)))
            style = {"color": COLOURS[number % len(COLOURS)], "label": _name(arm["name"])}
            axis.plot(*zip(*sorted(points), strict=True), marker="o", markersize=4, **style) if points else None
        axis.set_xscale("log")
        marks = sorted(facts["rates"])[:: max(1, -(-len(facts["rates"]) // MOST_MARKS))]
        axis.set_xticks(marks, [f"{rate:.3g}" for rate in marks])
        axis.minorticks_off()
        axis.set_title(_title(data, facts))
        axis.set_xlabel("learning rate")
        axis.set_ylabel(facts["metric"])
    _legend(axes, facts)
    return figure


def _curves(facts: Facts) -> Any:
    """The mean over seeds, and the range from the lowest to the highest."""
    figure, axes = _grid(facts)
    names = [each["name"] for each in _shown_arms(facts)]
    for axis, data in zip(axes, facts["data"], strict=False):
        lowest = []
        for curve in facts["curves"]:
            if curve["data"] != data or curve["arm"] not in names or not curve["rows"]:
                continue
            steps, means, lows, highs = zip(*curve["rows"], strict=True)
            colour = COLOURS[names.index(curve["arm"]) % len(COLOURS)]
            axis.plot(steps, means, color=colour, linewidth=1.5, label=_name(curve["arm"]))
            axis.fill_between(steps, lows, highs, color=colour, alpha=0.15, linewidth=0)
            lowest += [means[0], means[-1]]
        if lowest and min(lowest) > 0 and max(lowest) / min(lowest) > 20:
            axis.set_yscale("log")
        axis.set_title(_title(data, facts))
        axis.set_xlabel("steps")
        axis.set_ylabel(f"validation {facts['metric']}")
    _legend(axes, facts)
    return figure


def _title(data: str, facts: Facts) -> str:
    """The name of a data set, where there are several."""
    return _name(data) if len(facts["data"]) > 1 else ""


def _shown_arms(facts: Facts) -> list[Facts]:
    """The control, and of very many arms those with the largest effects."""
    arms = sorted(facts["arms"], key=lambda each: -abs(each["effect"]["mean"]) if each["effect"] else 0.0)
    kept = {each["name"] for each in arms[: MOST_ARMS - 1]}
    return [facts["control"], *(each for each in facts["arms"] if each["name"] in kept)]


def _grid(facts: Facts) -> tuple[Any, list[Any]]:
    number = len(facts["data"])
    columns = min(3, number)
    rows = math.ceil(number / columns)
    figure, axes = new_figure(rows, columns, width=(4.4 if columns == 1 else 3.3 * columns) + 1.6, height=3.4 * rows)
    found = list(axes.ravel())
    for axis in found[number:]:
        axis.set_visible(False)
    return figure, found


def _legend(axes: list[Any], facts: Facts) -> None:
    """Beside the charts, where it covers no line: at the end of the first row."""
    last = axes[min(3, len(facts["data"])) - 1]
    last.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _name(text: str) -> str:
    """As it is: between two dollars matplotlib sees mathematics."""
    return text.replace("$", "\\$")
