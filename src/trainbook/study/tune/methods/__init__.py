"""How points are chosen. A method is a function of the space and of what was tried so far, and of nothing else: whoever
asks, and after whatever crash, gets the same points."""

from __future__ import annotations

from collections.abc import Sequence

from trainbook.study.tune.methods.draws import random_points, sobol_points
from trainbook.study.tune.methods.isolate import one_at_a_time
from trainbook.study.tune.methods.point import Method, PointSearch, SearchPoint, Tried
from trainbook.study.tune.methods.suggest import gp, tpe
from trainbook.study.tune.methods.zoom import zoom

METHODS: dict[str, Method] = {
    "sobol": sobol_points,
    "random": random_points,
    "zoom": zoom,
    "one-at-a-time": one_at_a_time,
    "tpe": tpe,
    "gp": gp,
}
EXPLORES = ("sobol", "random")  # points that depend on no result: what importance may be read from


def propose(method: str, search: PointSearch, tried: Sequence[Tried]) -> list[SearchPoint]:
    """The next points; none while they depend on trials that still run, or when all were given out."""
    return METHODS[method](search, tried)


__all__ = ["EXPLORES", "METHODS", "PointSearch", "SearchPoint", "Tried", "propose"]
