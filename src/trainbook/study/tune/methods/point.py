"""What methods are asked, and what they answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainbook.study.space import Space


@dataclass(frozen=True)
class PointSearch:
    """One search: a space, and how many points of it may be tried."""

    space: Space
    points: int
    seed: int
    base: Mapping[str, Any]  # the values around which it is, of all knobs that are searched
    given: Mapping[str, Any] = field(default_factory=dict)  # values that are not searched, which conditions may ask for
    base_tried: Tried | None = None  # what became of the base; it is no point of the search


@dataclass(frozen=True)
class Tried:
    """A point that was given out before. Lower is better."""

    units: tuple[float, ...]
    values: Mapping[str, Any]
    round: int = 0
    is_open: bool = False  # waiting or running
    loss: float | None = None  # None: open, pruned, failed or infeasible
    is_infeasible: bool = False

    @property
    def is_good(self) -> bool:
        return self.loss is not None and math.isfinite(self.loss)


@dataclass(frozen=True)
class SearchPoint:
    units: tuple[float, ...]
    values: Mapping[str, Any]
    round: int = 0


Method = Callable[[PointSearch, Sequence[Tried]], list[SearchPoint]]


def new_points(
    search: PointSearch,
    units: Iterable[Sequence[float]],
    known: Iterable[Mapping[str, Any]],
    most: int,
    space: Space,
    number: int,
) -> list[SearchPoint]:
    """The first `most` of a sequence whose values were not tried yet."""
    seen = {key(values) for values in known}
    found: list[SearchPoint] = []
    for each in units:
        if len(found) >= most:
            break
        values = space.at(each, search.given)
        if key(values) not in seen:
            seen.add(key(values))
            found.append(SearchPoint(tuple(map(float, each)), values, number))
    return found


def base_values(search: PointSearch) -> dict[str, Any]:
    """Of the base those that a point like it would have."""
    return {path: search.base[path] for path in search.space.at(search.space.place(search.base), search.given)}


def key(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(values.items(), key=lambda pair: pair[0]))


def all_points(search: PointSearch) -> list[tuple[float, ...]]:
    """Of a space that has an end: each once."""
    import itertools

    counts = [each.num_values or 0 for each in search.space.dimensions]
    return [
        tuple((place + 0.5) / count for place, count in zip(places, counts, strict=True))
        for places in itertools.product(*map(range, counts))
    ]
