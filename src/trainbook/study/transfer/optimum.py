"""Where the best rate lies, how far it moves with the size, and what it costs to carry it over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

SMALL_SHIFT = 1.0  # in log2: less than a doubling
SMALL_REGRET = 0.1  # nats
EXPLODED = 1.0  # nats above the best: a neighbour like this says nothing of the bowl's form

Seeds = Sequence[float | None]  # a loss for each seed; None: it cannot be trained like this
Losses = Mapping[float, Seeds]  # by rate


@dataclass(frozen=True)
class Optimum:
    rate: float  # of those that were tried
    loss: float
    log2_rate: float  # between those that were tried: where a parabola through the best and its neighbours is lowest
    edge: str | None  # low | high: the best is the last on this side, so the true one may lie beyond


def mean_loss(seeds: Seeds) -> float | None:
    """One that cannot be trained stands for all of its rate."""
    whole = [loss for loss in seeds if loss is not None and math.isfinite(loss)]
    return mean(whole) if whole and len(whole) == len(seeds) else None


def optimum(losses: Losses) -> Optimum | None:
    """None: no rate can be trained at."""
    rates = sorted(losses)
    means = {rate: mean_loss(losses[rate]) for rate in rates}
    found = [(loss, rate) for rate in rates if (loss := means[rate]) is not None]
    if not found:
        return None
    loss, rate = min(found)
    at = rates.index(rate)
    edge = "low" if at == 0 else "high" if at == len(rates) - 1 else None
    around = [(math.log2(each), means[each]) for each in rates[max(0, at - 1) : at + 2]]
    whole = [(place, value) for place, value in around if value is not None and value - loss <= EXPLODED]
    log2_rate = _lowest(whole) if len(whole) == 3 else math.log2(rate)
    return Optimum(rate, loss, log2_rate, edge)


def _lowest(points: Sequence[tuple[float, float]]) -> float:
    """Of the parabola through three points of which the middle one is lowest."""
    (x0, y0), (x1, y1), (x2, y2) = points
    left, right = (y0 - y1) / (x0 - x1), (y2 - y1) / (x2 - x1)
    bend = (right - left) / (x2 - x0)
    return x1 if bend == 0 else x1 - (left - bend * (x0 - x1)) / (2 * bend)


def summary(by_size: Mapping[int, Losses], axis: str) -> dict[str, Any]:
    """Of one arm: the best of each size, and how the largest does with the best rate of the smallest."""
    best = {size: optimum(losses) for size, losses in by_size.items()}
    sizes = sorted(by_size)
    first, last = best[sizes[0]], best[sizes[-1]]
    rows = [_of_size(size, by_size[size], best[size], first) for size in by_size]
    answer: dict[str, Any] = {"sizes": rows, "shift": None, "regret": None, "regret_deviation": None, "transfers": None}
    if first is None or last is None:
        where = ", ".join(str(size) for size in sizes if best[size] is None)
        return answer | {"reason": f"at {axis} {where} training failed at every learning rate"}
    edges = [size for size, each in best.items() if each is not None and each.edge]
    if edges:
        told = (
            f"the best learning rate at {axis} {', '.join(map(str, edges))} is at the edge of the grid: widen "
            "--learning-rates"
        )
        return answer | {"reason": told}
    largest = next(row for row in rows if row["size"] == sizes[-1])
    shift, regret, deviation = last.log2_rate - first.log2_rate, largest["regret"], largest["regret_deviation"]
    answer |= {"shift": shift, "regret": regret, "regret_deviation": deviation}
    told = f"from {axis} {sizes[0]} to {sizes[-1]} the optimum moves by {shift:+.2f} in log2"
    if first.rate not in by_size[sizes[-1]]:
        return answer | {"reason": f"{told}; the cost of transferring it was not measured"}
    noise = "" if deviation is None else f" ± {deviation:.3f}"
    cost = "cannot train the largest" if regret is None else f"costs {regret:.3f}{noise} nats at the largest"
    is_kept = abs(shift) <= SMALL_SHIFT and regret is not None and regret <= SMALL_REGRET
    return answer | {"transfers": is_kept, "reason": f"{told}; the best learning rate of the smallest {cost}"}


def _of_size(size: int, losses: Losses, best: Optimum | None, first: Optimum | None) -> dict[str, Any]:
    """Deviations are those over seeds; that of a regret is of differences between runs of the same seed."""
    at_best = losses[best.rate] if best else ()
    carried = losses.get(first.rate, ()) if first else ()
    pairs = list(zip(carried, at_best, strict=False))
    differences = [one - other if one is not None and other is not None else None for one, other in pairs]
    return {
        "size": size,
        "losses": [[rate, mean_loss(losses[rate])] for rate in sorted(losses)],
        "best_rate": best.rate if best else None,
        "best_loss": best.loss if best else None,
        "best_deviation": _deviation(at_best),
        "log2_optimum": best.log2_rate if best else None,
        "edge": best.edge if best else None,
        "carried_loss": mean_loss(carried),
        "carried_deviation": _deviation(carried),
        "regret": mean_loss(differences),
        "regret_deviation": _deviation(differences),
    }


def _deviation(seeds: Seeds) -> float | None:
    whole = [loss for loss in seeds if loss is not None]
    return stdev(whole) if len(whole) == len(seeds) > 1 else None


# A transfer's answer as text: a table, and a sentence


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
            rows.append(["± at best", *(_deviation_text(each["best_deviation"]) for each in sizes)])
            rows.append(["± transferred", *(_deviation_text(each["carried_deviation"]) for each in sizes)])
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


def _deviation_text(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}  "


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
