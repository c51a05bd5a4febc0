"""One change at a time around the base: what a knob does alone, and no more than that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from trainbook.study.space import Dimension
from trainbook.study.tune.methods.point import PointSearch, SearchPoint, Tried, key


def one_at_a_time(search: PointSearch, tried: Sequence[Tried]) -> list[SearchPoint]:
    """Each knob's points are even on its scale; when a study is extended, those of the finer grid that are new."""
    if len(tried) >= search.points:
        return []
    dimensions = search.space.dimensions
    middle = search.space.place(search.base)
    known = {key(each.values) for each in tried}
    points = [
        SearchPoint(
            tuple(unit if other is each else old for other, old in zip(dimensions, middle, strict=True)),
            {each.path: each.at(unit)},
        )
        for each, count in zip(dimensions, _shares(search), strict=True)
        for unit in _units(each, count, search.base[each.path])
    ]
    return [each for each in points if key(each.values) not in known][: search.points - len(tried)]


def _shares(search: PointSearch) -> list[int]:
    """Points of each knob: evenly, the first having one more if need be. What one has no use for, because it is idle
    beside the base or has few values, goes to those that have the fewest."""
    dimensions = search.space.dimensions
    known = {**search.given, **search.base}
    most = [
        _num_others(each, search.base[each.path], search.points) if each.is_searched_with(known) else 0
        for each in dimensions
    ]
    share, more = divmod(search.points, max(1, len(dimensions)))
    shares = [min(share + (number < more), limit) for number, limit in enumerate(most)]
    for _ in range(search.points - sum(shares)):
        takers = [number for number, limit in enumerate(most) if shares[number] < limit]
        if not takers:
            break
        shares[min(takers, key=lambda number: shares[number])] += 1
    return shares


def _num_others(each: Dimension, base: Any, points: int) -> int:
    """How many values there are beside the base's; of a range without steps, as many as one likes."""
    if each.num_values is None:
        return points
    return each.num_values - (each.holds(base) and each.at(each.place(base)) == base)


def _units(each: Dimension, count: int, base: Any) -> list[float]:
    """Of so many values that are neither the base's nor twice the same: even places, and others for those left out."""
    found: dict[Any, float] = {}
    for unit in chain(_even(count), _finer(each, count)):
        if len(found) == count:
            break
        value = each.at(unit)
        if value != base:
            found.setdefault(value, unit)
    return sorted(found.values())


def _finer(each: Dimension, count: int) -> Iterator[float]:
    """All places of a knob that has an end of them; of any other one more than before."""
    if each.scale in ("log", "log_one_minus") and each.num_values is not None:
        yield from (each.place(each.low + place * (each.step or 1)) for place in range(each.num_values))
    else:
        yield from _even(each.num_values or count + 1)


def _even(count: int) -> Iterator[float]:
    return ((place + 0.5) / count for place in range(count))
