"""Coarse to fine: rounds of Sobol points, each in a smaller range around what was good, and over an edge if the best
lies at it.

A round begins when the one before has ended. The good region is that of the best quarter. The best point stays inside,
and not at the edge: where it is within a tenth of one, the range goes on beyond, outside of the first range too, as far
as the knob's own law allows. The base is one of the points, though it is not paid for here. A choice is left out only
when it was tried a few times and its best is in the worse half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trainbook.study.space import Dimension, Space
from trainbook.study.tune.methods.draws import sobol
from trainbook.study.tune.methods.point import PointSearch, SearchPoint, Tried, all_points, base_values, new_points

GOOD = 0.25  # share of the trials so far
EDGE = 0.1  # of the range: nearer to an end is at it
MARGIN = 0.15  # of the range, around the good points
MOST, LEAST = 0.6, 0.1  # of the range, that the next one keeps
TRIES = 3  # of a choice, before it may be left out


def num_rounds(points: int) -> int:
    return 1 if points < 4 else 2 if points < 12 else 3 if points < 48 else 4


def zoom(search: PointSearch, tried: Sequence[Tried]) -> list[SearchPoint]:
    if any(each.is_open for each in tried) or len(tried) >= search.points:
        return []
    rounds = num_rounds(search.points)
    number = max((each.round for each in tried), default=-1) + 1
    if number and search.base_tried is not None and search.base_tried.is_open:
        return []
    left = search.points - len(tried)
    size = left if number >= rounds - 1 else max(1, left // (rounds - number))
    space = space_of_round(search, tried, number)
    count = space.num_points
    units = all_points(replace(search, space=space)) if count is not None and count <= size else None
    points = units or sobol(len(space), search.seed + number, max(size, 2))
    known = [base_values(search), *(each.values for each in tried)]
    found = new_points(search, points, known, size, space, number)
    # Where the region has nothing new left, the whole space may have.
    return found or new_points(
        search, sobol(len(search.space), search.seed + 101 + number, size), known, size, search.space, number
    )


def space_of_round(search: PointSearch, tried: Sequence[Tried], number: int) -> Space:
    """Each round's region follows from the one before and from what was found until then."""
    space = search.space
    for earlier in range(number):
        so_far = [each for each in tried if each.round <= earlier]
        space = narrowed(space, [*([search.base_tried] if search.base_tried else []), *so_far])
    return space


def narrowed(space: Space, tried: Sequence[Tried]) -> Space:
    good = sorted((each for each in tried if each.is_good), key=lambda each: each.loss or 0.0)
    if not good:
        return space  # nothing worked: look again, elsewhere in the same
    best = good[: max(2, round(GOOD * len(good)))]
    return Space(
        tuple(_fewer(each, best, tried) if each.scale == "choice" else _narrow(each, best) for each in space.dimensions)
    )


def _fewer(each: Dimension, best: Sequence[Tried], tried: Sequence[Tried]) -> Dimension:
    losses = sorted(trial.loss for trial in tried if trial.is_good and trial.loss is not None)
    middle = losses[len(losses) // 2]

    def stays(choice: Any) -> bool:
        mine = [trial for trial in tried if each.path in trial.values and trial.values[each.path] == choice]
        is_worse = all(not trial.is_good or (trial.loss or 0.0) > middle for trial in mine)
        return len([trial for trial in mine if not trial.is_open]) < TRIES or not is_worse or _has(best, each, choice)

    return replace(each, choices=tuple(filter(stays, each.choices)) or each.choices)


def _has(trials: Sequence[Tried], each: Dimension, choice: Any) -> bool:
    return any(trial.values.get(each.path) == choice for trial in trials)


def _narrow(each: Dimension, good: Sequence[Tried]) -> Dimension:
    having = [trial.values[each.path] for trial in good if each.path in trial.values]
    places = [each.to_scale(float(value)) for value in having if each.has_place(value)]
    if not places:
        return each
    low, high, best = each.to_scale(each.low), each.to_scale(each.high), places[0]
    width = high - low
    span = min(max(max(places) - min(places) + 2 * MARGIN * width, LEAST * width), MOST * width)
    start = min(max((min(places) + max(places)) / 2 - span / 2, low), high - span)
    start = min(max(start, best - (1 - EDGE) * span), best - EDGE * span)  # the best inside, and not at an end
    if best < low + EDGE * width:  # at an edge: what is beyond may be better still
        start = min(start, best - span / 2)
    if best > high - EDGE * width:
        start = max(start, best - span / 2)
    return each.between(start, start + span)
