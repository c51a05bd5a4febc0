"""One change at a time around the base: what a knob does alone, and no more than that."""

from __future__ import annotations

from collections.abc import Sequence

from trainbook.study.tune.methods.point import Point, Search, Tried, key


def one_at_a_time(search: Search, tried: Sequence[Tried]) -> list[Point]:
    """The points are shared out evenly, the first knobs having one more if need be. Each is even on its scale."""
    if tried:
        return []
    found: list[Point] = []
    dimensions = search.space.dimensions
    share, more = divmod(search.points, max(1, len(dimensions)))
    middle = search.space.place(search.base)
    for number, each in enumerate(dimensions):
        if not each.is_searched_with({**search.given, **search.base}):
            continue
        count = min(share + (number < more), each.num_values or search.points)
        seen = {key({each.path: search.base[each.path]})}
        for place in range(count):
            unit = (place + 0.5) / count
            values = {each.path: each.at(unit)}
            if key(values) in seen:  # the base itself, which is there already
                continue
            seen.add(key(values))
            units = tuple(unit if other is each else old for other, old in zip(dimensions, middle, strict=True))
            found.append(Point(units, values))
    return found
