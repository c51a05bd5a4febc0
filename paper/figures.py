"""The figures of the paper, drawn from results files alone. A figure whose results are not there is left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evidence
from evidence import GIB, VERDICTS, benchmark, lost_by_drawing, percent, studies

from trainbook.charts.ablation import effects_figure, rates_figure
from trainbook.charts.figure import BLUE, COLOURS, GREEN, GREY, ORANGE, RED, new_figure, save

Facts = dict[str, Any]
Row = tuple[str, Any, Any]  # its name first
PANEL, LEGEND = 2.75, 1.3  # inches
SHADES = (GREEN, RED, GREY, "#D0D0D0")  # of VERDICTS
METHODS = {"grid": "grid", "sobol": "quasi-random", "zoom": "zoom", "optuna": "Optuna (TPE)"}
POLICIES = {"none": "nothing", "fixed": "fixed threshold", "zclip": "ZClip", "adagc": "AdaGC", "guard": "guard"}
PLACEMENTS = {
    "burst-1": "1 in a row",
    "burst-3": "3 in a row",
    "burst-12": "12 in a row",
    "burst-50": "50 in a row",
    "random-1": "1 % at random",
    "random-5": "5 % at random",
}


def draw_all(folder: Path) -> dict[str, Facts]:
    """Names of the figures that were drawn, with their width and a text for those who cannot see them."""
    drawn = {}
    for name, draw in _figures().items():
        path = folder / f"{name}.svg"
        if alt := draw(path):
            points = re.search(r'<svg[^>]* width="([\d.]+)pt"', path.read_text(encoding="utf-8"))
            assert points is not None
            drawn[name] = {"alt": alt, "inches": float(points[1]) / 72}
    return drawn


def _figures() -> dict[str, Callable[[Path], str]]:
    found: dict[str, Callable[[Path], str]] = {}
    for name, study in studies().items():
        found[f"effects-{name}"] = lambda path, study=study: _effects(study, path)
        found[f"rates-{name}"] = lambda path, study=study: _rates(study, path)
    for job in ("gpt", "bert", "t5"):
        found[f"transfer-{job}"] = lambda path, job=job: _transfer(job, path)
    return found | {
        "sensitivity": _sensitivity,
        "noise": _noise,
        "search": _search,
        "scales": _scales,
        "averages": _averages,
        "memory": _memory,
        "speed": _speed,
        "poison": _poison,
        "healthy": _healthy,
        "verdicts": _verdicts,
    }


def _effects(study: Facts, path: Path) -> str:
    if not any(arm["effect"] for arm in study["arms"]):
        return ""
    save(effects_figure(study), path)
    return "; ".join(f"{arm['name']}: {arm['verdict']}" for arm in study["arms"])


def _rates(study: Facts, path: Path) -> str:
    if len(study["rates"]) < 2:
        return ""
    figure = rates_figure(study)
    if len(study["data"]) > 1:  # narrower than on a screen, so that letters stay readable on a page
        figure.set_size_inches(PANEL * len(study["data"]) + LEGEND, 3.2)
        for axis in figure.axes:
            axis.tick_params(labelsize=8)
    save(figure, path)
    return f"Loss against {len(study['rates'])} learning rates for {len(study['arms']) + 1} arms"


def _transfer(job: str, path: Path) -> str:
    arms = benchmark("transfer-h200")[job]["arms"]
    figure, axes = new_figure(1, 2, width=9.0, height=3.4)
    titles = {"standard": "standard parametrization", "mup": "muP"}
    for axis, (arm, title) in zip(axes[0], titles.items(), strict=True):
        for number, size in enumerate(arms[arm]["sizes"]):
            rates, losses = zip(*size["losses"], strict=True)
            colour = COLOURS[number]
            axis.plot(rates, losses, "o-", color=colour, markersize=3.5, linewidth=1.3, label=f"width {size['size']}")
            axis.plot([size["best_rate"]], [size["best_loss"]], "o", color=colour, markersize=8, fillstyle="none")
        axis.set_xscale("log")
        axis.set_title(title)
        axis.set_xlabel("learning rate")
    axes[0, 0].set_ylabel("validation loss")
    axes[0, 1].legend(fontsize=8, frameon=False)
    axes[0, 1].set_ylim(axes[0, 0].get_ylim())
    save(figure, path)
    plain, mup = (arms[arm]["shift"] for arm in titles)
    return f"The best rate moves by {plain:+.2f} octaves without and {mup:+.2f} with muP"


def _sensitivity(path: Path) -> str:
    rows = []
    for study in studies().values():
        for arm in (study["control"], *study["arms"]):
            found = [each["sensitivity"] for each in arm["by_data"] if each.get("sensitivity") is not None]
            if found:
                rows.append((f"{study['name']}: {arm['name']}", sum(found) / len(found), arm["name"] == "control"))
    if not rows:
        return ""
    figure, columns = _two_columns(rows, max(value for _, value, _ in rows))
    for axis, part in columns:
        for place, (_, value, is_control) in enumerate(part):
            axis.plot([0, value], [place, place], color=GREY, linewidth=0.8)
            axis.plot([value], [place], "s" if is_control else "o", color=ORANGE if is_control else BLUE, markersize=5)
    figure.supxlabel("mean excess loss over the tried rates (square: the control)", fontsize=10)
    save(figure, path)
    return "Sensitivity to the learning rate by arm"


def _noise(path: Path) -> str:
    rows = [
        (f"{name}: {arm['name']}", 100 * arm["noise"], 100 * arm["smallest_effect"])
        for name, study in studies().items()
        for arm in study["arms"]
        if arm["effect"] and study["scale"] == "share" and arm["smallest_effect"] is not None
    ]
    if not rows:
        return ""
    figure, columns = _two_columns(rows, max(max(noise, smallest) for _, noise, smallest in rows))
    for axis, part in columns:
        for place, (_, noise, smallest) in enumerate(part):
            axis.plot([noise], [place], "o", color=BLUE, markersize=5, label="noise of a pair" if place == 0 else None)
            label = "smallest effect found in 80 %" if place == 0 else None
            axis.plot([smallest], [place], "D", color=ORANGE, markersize=5, label=label)
    figure.supxlabel("% of the control's loss", fontsize=10)
    handles, labels = columns[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, ncols=2, loc="outside upper center")
    save(figure, path)
    return "Noise of paired differences and smallest effect by arm"


def _two_columns(rows: list[Row], largest: float) -> tuple[Any, list[tuple[Any, list[Row]]]]:
    """A figure for a long list: of each half an axis that names its rows, from 0 to the largest value of both, and the
    rows from the lowest to the topmost."""
    middle = (len(rows) + 1) // 2
    figure, axes = new_figure(1, 2, width=8.5, height=1.1 + 0.19 * middle)
    columns = []
    for axis, part in zip(axes[0], (rows[:middle], rows[middle:]), strict=True):
        lowest_first = part[::-1]
        axis.set_yticks(range(len(part)), [name for name, _, _ in lowest_first], fontsize=7.5)
        axis.set_ylim(len(part) - middle - 0.8, len(part) - 0.2)
        axis.sharex(axes[0, 0]) if axis is not axes[0, 0] else None
        columns.append((axis, lowest_first))
    axes[0, 0].set_xlim(0, 1.05 * largest)
    return figure, columns


def _search(path: Path) -> str:
    figure, axes = new_figure(1, 2, width=8.5, height=3.2)
    searches = benchmark("tuning")["searches"]
    for axis, job in zip(axes[0], ("gpt", "bert"), strict=True):
        for place, method in enumerate(METHODS):
            losses = [facts["mean"] for name, facts in searches.items() if name.startswith(f"{job} {method} ")]
            axis.plot([place] * len(losses), losses, "o", color=BLUE, alpha=0.6, markersize=5)
            axis.plot([place - 0.2, place + 0.2], [sum(losses) / len(losses)] * 2, color=RED, linewidth=2)
        axis.set_xticks(range(len(METHODS)), METHODS.values(), fontsize=8)
        axis.set_title(f"{job.upper()}, 31 trials")
    axes[0, 0].set_ylabel("loss of the chosen configuration")
    save(figure, path)
    return "Loss of the configuration that grid, quasi-random, zoom and Optuna chose"


def _scales(path: Path) -> str:
    counts = (1, 2, 4, 8, 16, 32)
    figure, axes = new_figure(1, 1, width=6.0, height=3.2)
    for label, colour, is_logarithmic in (("linear", RED, False), ("logarithmic", BLUE, True)):
        lost = [100 * lost_by_drawing(count, is_logarithmic=is_logarithmic) for count in counts]
        axes[0, 0].plot(counts, lost, "o-", color=colour, label=f"{label} scale")
    axes[0, 0].set_xscale("log", base=2)
    axes[0, 0].set_xticks(counts, [str(each) for each in counts])
    axes[0, 0].set_xlabel("learning rates tried")
    axes[0, 0].set_ylabel("excess loss of the best, %")
    axes[0, 0].legend(fontsize=9, frameon=False)
    save(figure, path)
    return "Excess loss of the best of n rates on a linear and a logarithmic scale"


def _averages(path: Path) -> str:
    figure, axes = new_figure(1, 1, width=6.5, height=2.8)
    for number, beta in enumerate((0.9, 0.95, 0.99, 0.999)):
        ages = range(1, 3001)
        weights = [(1 - beta) * beta ** (age - 1) for age in ages]
        axes[0, 0].plot(ages, weights, color=COLOURS[number], label=f"{beta:g}: about {1 / (1 - beta):,.0f} values")
    axes[0, 0].set_xscale("log")
    axes[0, 0].set_yscale("log")
    axes[0, 0].set_ylim(1e-5, 0.2)
    axes[0, 0].set_xlabel("age of the value, in updates")
    axes[0, 0].set_ylabel("weight")
    axes[0, 0].legend(fontsize=8, frameon=False, title="beta", title_fontsize=8)
    save(figure, path)
    return "Weights of exponential averages"


def _memory(path: Path) -> str:
    rows = [row for row in benchmark("memory-h200")["rows"] if row["name"].startswith(("gpt-124m", "bert-110m"))]
    figure, axes = new_figure(1, 1, width=8.0, height=0.9 + 0.26 * len(rows))
    axis = axes[0, 0]
    for place, row in enumerate(reversed(rows)):
        held, peak = row["held_bytes"] / GIB, row["peak_bytes"] / GIB
        axis.barh(place, held, color=BLUE, height=0.7, label="weights and optimizer state" if place == 0 else None)
        label = "gradients, activations and the rest" if place == 0 else None
        axis.barh(place, peak - held, left=held, color=ORANGE, height=0.7, label=label)
    axis.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)], fontsize=8)
    axis.set_xlabel("peak memory, GiB")
    axis.legend(fontsize=8, frameon=False, loc="lower right")
    save(figure, path)
    return "Peak memory by configuration"


def _speed(path: Path) -> str:
    rows = [row for row in benchmark("step-times-h200")["rows"] if row["name"].startswith(("gpt-124m", "gpt-20m"))]
    figure, axes = new_figure(1, 1, width=8.0, height=0.9 + 0.26 * len(rows))
    axis = axes[0, 0]
    for place, row in enumerate(reversed(rows)):
        case = row["case"]
        speed = case["rows"] * case["length"] * case["accumulation"] / row["seconds_per_step"]
        axis.barh(place, speed / 1e3, color=GREEN if case["compiled"] else BLUE, height=0.7)
    axis.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)], fontsize=8)
    axis.set_xlabel("thousand tokens per second (green: compiled)")
    save(figure, path)
    return "Tokens per second by configuration"


def _poison(path: Path) -> str:
    rows = benchmark("guard-poison")["held-out"]["loops"]["by_placement"]
    figure, axes = new_figure(1, 1, width=8.5, height=3.4)
    axis = axes[0, 0]
    for number, (policy, label) in enumerate(POLICIES.items()):
        found = {row["name"]: row["median_loss"] for row in rows if row["policy"] == policy}
        places = [place + 0.15 * (number - 2) for place in range(len(PLACEMENTS))]
        axis.bar(places, [found[name] for name in PLACEMENTS], width=0.14, color=COLOURS[number], label=label)
    axis.axhline(0, color=GREY, linewidth=0.8)
    axis.set_xticks(range(len(PLACEMENTS)), PLACEMENTS.values(), fontsize=8)
    axis.set_ylabel("final loss above the clean run,\nin standard deviations over seeds", fontsize=9)
    axis.legend(fontsize=8, frameon=False, ncols=2)
    save(figure, path)
    return "Final loss after bad batches by policy"


def _healthy(path: Path) -> str:
    halves = benchmark("guard-healthy")
    rows = [
        (each["name"], 100 * each["rejected"][0] / each["rejected"][1], half)
        for half in ("development", "held-out")
        for each in halves[half]["guard"]["families"]
    ]
    shown = sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])
    figure, axes = new_figure(1, 1, width=8.0, height=0.9 + 0.2 * len(shown))
    axis = axes[0, 0]
    for place, (_, share, half) in enumerate(reversed(shown)):
        axis.barh(place, share, color=BLUE if half == "development" else ORANGE, height=0.7)
    axis.set_yticks(range(len(shown)), [name for name, _, _ in reversed(shown)], fontsize=7)
    axis.set_xlabel(f"% of updates rejected; none in the other {len(rows) - len(shown)} programs (orange: held out)")
    save(figure, path)
    worst = f"{shown[0][0]} {percent(shown[0][1] / 100)}" if shown else "none"
    return f"Rejected updates of {len(rows)} healthy programs; at most: {worst}"


def _verdicts(path: Path) -> str:
    claims = evidence.claims()
    notes = list(dict.fromkeys(each["note"] for each in claims))
    figure, axes = new_figure(1, 1, width=7.5, height=2.8)
    axis = axes[0, 0]
    for place, note in enumerate(reversed(notes)):
        left = 0
        for verdict, shade in zip(VERDICTS, SHADES, strict=True):
            count = sum(each["note"] == note and each["verdict"] == verdict for each in claims)
            axis.barh(place, count, left=left, color=shade, height=0.65, label=verdict if place == 0 else None)
            if count:
                axis.text(left + count / 2, place, str(count), ha="center", va="center", fontsize=8)
            left += count
    axis.set_yticks(range(len(notes)), list(reversed(notes)))
    axis.set_xlabel("claims")
    axis.legend(fontsize=8, frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    save(figure, path)
    return "; ".join(f"{verdict}: {sum(each['verdict'] == verdict for each in claims)}" for verdict in VERDICTS)
