"""Points that depend on no result: at random, or evenly over the space by Sobol's sequence. Drawn once, and queued."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainbook.study.space import Space
from trainbook.study.tune.methods.point import PointSearch, SearchPoint, Tried, all_points, base_values, new_points

SPARE = 64  # times as many may be drawn, where most of them were tried already


def random_points(search: PointSearch, tried: Sequence[Tried]) -> list[SearchPoint]:
    return _all_at_once(search, tried, _random(len(search.space), search.seed))


def sobol_points(search: PointSearch, tried: Sequence[Tried]) -> list[SearchPoint]:
    return _all_at_once(search, tried, sobol(len(search.space), search.seed, search.points))


def _all_at_once(search: PointSearch, tried: Sequence[Tried], units: Iterator[Sequence[float]]) -> list[SearchPoint]:
    """All that the budget pays for; when a study is extended, the next points of the same sequence.

    A space with fewer points than the budget pays for is enumerated, each point once. The base was tried already.
    """
    left = search.points - len(tried)
    if left <= 0:
        return []
    count = search.space.num_points
    known = [base_values(search), *(each.values for each in tried)]
    if count is not None and count <= search.points:
        units = iter(all_points(search))
    return new_points(search, units, known, left, search.space, 0)


def sobol(dimensions: int, seed: int, least: int) -> Iterator[Sequence[float]]:
    """Scrambled, from its beginning: the first 2^k points are the most even ones."""
    from scipy.stats import qmc

    if dimensions == 0:
        return
    sequence = qmc.Sobol(dimensions, scramble=True, rng=seed)
    power = max(1, (least - 1).bit_length())
    drawn = 0
    while drawn < max(least, 1) * SPARE:
        # By powers of 2 only: the sequence is balanced at these, and scipy warns of others.
        points = sequence.random_base2(power) if drawn == 0 else sequence.random(drawn)
        drawn += len(points)
        yield from points.tolist()


def _random(dimensions: int, seed: int) -> Iterator[Sequence[float]]:
    import numpy as np

    draw = np.random.default_rng(seed)
    for _ in range(10**6):
        yield draw.random(dimensions).tolist()


__all__ = ["Space", "random_points", "sobol", "sobol_points"]
