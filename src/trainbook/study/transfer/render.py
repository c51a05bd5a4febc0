"""A transfer's answer as text: a table, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def check_text(answer: dict[str, Any]) -> str:
    """Slopes after the last update, a row for each layer."""
    arms = answer["arms"]
    layers = next(iter(arms.values()))["slopes"]
    rows = [["layer", *arms]]
    rows += [[layer, *(f"{found['slopes'][layer][-1]:+.2f}" for found in arms.values())] for layer in layers]
    widths = ", ".join(map(str, answer["widths"]))
    title = f"slope of log2 mean |x| over log2 width, {widths}, after {answer['steps']} updates"
    return "\n".join([f"{title} at {answer['learning_rate']:g}", "", *_table(rows), "", answer["verdict"]])


def rates_text(answer: dict[str, Any]) -> str:
    """Losses, a row for each rate and a column for each size; the best of each size is marked."""
    lines: list[str] = []
    for arm, found in answer["arms"].items():
        sizes = found["sizes"]
        rates = sorted({rate for each in sizes for rate, _ in each["losses"]})
        rows = [[f"{arm}: learning rate", *(f"{answer['axis']} {each['size']}" for each in sizes)]]
        for rate in rates:
            rows.append([f"{rate:.3g}", *(_loss(each, rate) for each in sizes)])
        if answer["seeds"] > 1:
            rows.append(["± at best", *(_deviation(each["best_deviation"]) for each in sizes)])
            rows.append(["± transferred", *(_deviation(each["carried_deviation"]) for each in sizes)])
        lines += [*_table(rows), ""]
    for arm, found in answer["arms"].items():
        judged = {True: "transfers", False: "does not transfer", None: "cannot tell"}[found["transfers"]]
        lines.append(f"{arm}: {judged}: {found['reason']}.")
    if answer["notice"]:
        lines.append(answer["notice"])
    unfit = f", {answer['infeasible']} of them failed" if answer["infeasible"] else ""
    return "\n".join([*lines, f"{answer['runs']} runs{unfit}, in {answer['folder']}"])


def _loss(each: dict[str, Any], rate: float) -> str:
    losses = dict(map(tuple, each["losses"]))
    if rate not in losses:
        return ""
    mark = " *" if rate == each["best_rate"] else "  "
    return f"{losses[rate]:.3f}{mark}" if losses[rate] is not None else "none  "


def _deviation(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}  "


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
