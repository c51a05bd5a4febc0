"""A data set in four panels: lengths, what a length keeps, padding, and training against validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainbook.charts.figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure, save

MAX_CLASSES = 15
MAX_NAME = 24

Facts = dict[str, Any]


def draw_data(facts: Facts, path: Path) -> None:
    """From the answer of `trainbook data --json`."""
    figure, axes = new_figure(2, 2)
    figure.suptitle(f"{facts['source']}, in tokens of '{facts['tokenizer']}'", fontsize=12)
    _lengths(axes[0, 0], facts)
    _coverage(axes[0, 1], facts["lengths"])
    _padding(axes[1, 0], facts)
    _sides(axes[1, 1], facts)
    save(figure, path)


def _lengths(axis: Any, facts: Facts) -> None:
    train = facts["sides"]["train"]
    bins, sampled, documents = train["lengths"]["histogram"], train["sampled_documents"], train["documents"]
    of = f" (a sample of {sampled:,} of {documents:,})" if sampled < documents else ""
    axis.set_title(f"Lengths of training documents{of}")
    axis.set_xlabel("tokens")
    axis.set_ylabel("documents")
    if not bins:
        return
    _scale(axis, bins)
    axis.bar(
        [part["from"] for part in bins],
        [part["documents"] for part in bins],
        width=[part["to"] - part["from"] for part in bins],
        align="edge",
        color=BLUE,
        edgecolor="white",
        linewidth=0.5,
    )
    for key, colour, style in (("recommended", GREEN, "-"), ("configured", GREY, "--")):
        if (length := facts["lengths"][key]) is not None:
            axis.axvline(length, color=colour, linestyle=style, label=f"{key}: {length:,}")
    axis.legend(fontsize=9, frameon=False)


def _coverage(axis: Any, lengths: Facts) -> None:
    rows = lengths["curve"]
    places = [row["length"] for row in rows]
    axis.set_title("What each length keeps")
    for key, name, colour in (("tokens_kept", "tokens", BLUE), ("documents_whole", "whole documents", ORANGE)):
        axis.plot(places, [100 * row[key] for row in rows], marker="o", markersize=4, color=colour, label=name)
    if lengths["recommended"] is not None:
        axis.axvline(lengths["recommended"], color=GREEN, label=f"recommended: {lengths['recommended']:,}")
    axis.set_xscale("log", base=2)
    axis.set_xticks(places, [f"{place}" for place in places])
    axis.minorticks_off()
    axis.set_ylim(0, 104)
    axis.set_xlabel("positions")
    axis.set_ylabel("% kept")
    axis.legend(fontsize=9, frameon=False, loc="best")


def _padding(axis: Any, facts: Facts) -> None:
    padding = facts["padding"]
    waste = padding["at_recommended_length"]
    axis.set_title(f"Padding at {padding['length']:,} positions, {padding['micro_batch']} documents at a time")
    shares = [100 * share for share in waste.values()]
    colours = [GREEN if name == padding["recommended"] else BLUE for name in waste]
    bars = axis.barh(list(waste), shares, color=colours)
    labels = []
    for name, share in zip(waste, shares, strict=True):
        notes = [note for note in ("recommended", "configured") if padding[note] == name]
        labels.append(f"{share:.1f} %" + (f"  {', '.join(notes)}" if notes else ""))
    axis.bar_label(bars, labels, padding=4, fontsize=9)
    axis.set_xlim(0, max(10.0, *shares) * 1.35)
    axis.invert_yaxis()
    axis.set_xlabel("% of positions that are padding")


def _sides(axis: Any, facts: Facts) -> None:
    labels = {name: side["labels"] for name, side in facts["sides"].items() if side["labels"]}
    if "train" in labels and "counts" in labels["train"]:
        _classes(axis, labels)
    elif facts["shift"]:
        _two_lengths(axis, facts["shift"])
    else:
        axis.set_title("Training against validation")
        axis.text(0.5, 0.5, "no validation split", ha="center", va="center", color=GREY)
        axis.set_axis_off()


def _classes(axis: Any, labels: Facts) -> None:
    axis.set_title("Classes")
    names = list(labels["train"]["counts"])
    shown = names[:MAX_CLASSES]
    height = 0.8 / len(labels)
    for number, (side, colour) in enumerate(zip(labels, (BLUE, ORANGE), strict=False)):
        counts = labels[side]["counts"]
        total = sum(counts.values())
        places = [place + number * height for place in range(len(shown))]
        shares = [100 * counts.get(name, 0) / total for name in shown]
        axis.barh(places, shares, height=height, color=colour, align="edge", label=side)
    axis.set_yticks([place + 0.4 for place in range(len(shown))], [_shortened(name) for name in shown])
    axis.invert_yaxis()
    more = f" ({len(names) - len(shown)} more classes)" if len(names) > len(shown) else ""
    axis.set_xlabel(f"% of the side's labels{more}")
    axis.legend(fontsize=9, frameon=False, loc="lower right")


def _two_lengths(axis: Any, shift: Facts) -> None:
    axis.set_title(f"Lengths, training against validation (KS distance {shift['length']['ks_statistic']:.3f})")
    for side, colour in (("train", BLUE), ("validation", RED)):
        bins = shift["histograms"][side]
        total = sum(part["documents"] for part in bins) or 1
        edges = [part["from"] for part in bins] + [bins[-1]["to"]]
        axis.stairs([100 * part["documents"] / total for part in bins], edges, color=colour, label=side, linewidth=1.5)
        _scale(axis, bins)
    axis.set_xlabel("tokens")
    axis.set_ylabel("% of documents")
    axis.legend(fontsize=9, frameon=False)


def _scale(axis: Any, bins: list[Facts]) -> None:
    """As the bins are: by factors where each is wider than the one before."""
    first, last = bins[0], bins[-1]
    if last["to"] - last["from"] > 2 * (first["to"] - first["from"]) and first["from"] > 0:
        axis.set_xscale("log")
        from matplotlib.ticker import FuncFormatter

        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"
