"""How points are chosen. A method is a function of the space and of what was tried so far, and of nothing else: whoever
asks, and after whatever crash, gets the same points."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from trainbook.errors import MissingExtra
from trainbook.study.space import LAST, Dimension, Space

# What methods are asked, and what they answer


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
    """The base's values of the knobs that a search point at the base's place would set."""
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


# Points that depend on no result: at random, or evenly over the space by Sobol's sequence. Drawn once, and queued.


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


# Coarse to fine: rounds of Sobol points, each in a smaller range around what was good, and over an edge if the best
# lies at it.
#
# A round begins when the one before has ended. The good region is that of the best quarter. The best point stays
# inside, and not at the edge: where it is within a tenth of one, the range goes on beyond, outside of the first range
# too, as far as the knob's own law allows. The base is one of the points, though it is not paid for here. A choice is
# left out only when it was tried a few times and its best is in the worse half.


GOOD = 0.25  # share of the trials so far
EDGE = 0.1  # of the range: nearer to an end is at it
MARGIN = 0.15  # of the range, around the good points
MOST, LEAST = 0.6, 0.1  # of the range, that the next one keeps
CHOICE_TRIES = 3  # of a choice, before it may be left out


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
        num_tried = sum(not trial.is_open for trial in mine)
        return num_tried < CHOICE_TRIES or not is_worse or _has(best, each, choice)

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


# One change at a time around the base: what a knob does alone, and no more than that


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
    """Positions of `count` distinct values other than the base's: evenly spaced, and finer where values coincide."""
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


# Points by a model of what was found so far: Optuna's tree-structured Parzen estimator and Gaussian process.
#
# Optuna only suggests. It is asked in a study in memory that is filled with our own ledger's trials, so nothing of
# its storages, heartbeats and retries is relied on. All coordinates are numbers in [0, 1) on the knob's own scale:
# log scales of 1 - x, and steps on a log scale, which Optuna does not know, are nothing that it has to know.


FIRST = 10  # even points, before there is anything to model; or a quarter of all, if that is fewer
SEEDS = 2**32  # Optuna takes no more of them
NEW_POINT_TRIES = 3  # for a point that was not tried yet, in a space of few points


def tpe(search: PointSearch, tried: Sequence[Tried]) -> list[SearchPoint]:
    return _suggest("tpe", search, tried)


def gp(search: PointSearch, tried: Sequence[Tried]) -> list[SearchPoint]:
    return _suggest("gp", search, tried)


def _suggest(kind: str, search: PointSearch, tried: Sequence[Tried]) -> list[SearchPoint]:
    first = max(2, min(FIRST, search.points // 4))
    if not tried:
        return sobol_points(search, [])[: min(first, search.points)]
    if len(tried) >= search.points:
        return []
    if not any(each.is_good for each in tried) and any(each.is_open for each in tried):
        return []  # nothing to learn from yet
    known = [base_values(search), *(each.values for each in tried)]
    count = search.space.num_points
    if count is not None and not _left_of(search, known, count):
        return []
    for attempt in range(NEW_POINT_TRIES):
        seed = (search.seed + 1000 * len(tried) + attempt) % SEEDS
        units = _ask(kind, search, _with_base(search, tried), seed)
        values = search.space.at(units, search.given)
        if key(values) not in set(map(key, known)):
            return [SearchPoint(tuple(units), values, len(tried))]
    # All that it thinks of was tried: an even point says more than one of them again.
    return new_points(search, sobol(len(search.space), search.seed, search.points), known, 1, search.space, len(tried))


def _left_of(search: PointSearch, known: Sequence[Mapping[str, Any]], count: int) -> bool:
    """Whether a space that has an end has a point that was not tried."""
    if count > len(known):
        return True
    return bool(new_points(search, all_points(search), known, 1, search.space, 0))


def _with_base(search: PointSearch, tried: Sequence[Tried]) -> Sequence[Tried]:
    """The base too, where all of its values lie in the ranges."""
    base = search.base_tried
    if base is None or base.is_open:
        return tried
    inside = all(each.path in search.base and each.holds(search.base[each.path]) for each in search.space.dimensions)
    return [base, *tried] if inside else tried


def _ask(kind: str, search: PointSearch, tried: Sequence[Tried], seed: int) -> list[float]:
    try:
        import optuna
    except ImportError:
        raise MissingExtra(f"the method {kind}", "optuna", "tune") from None
    losses = [each.loss for each in tried if each.is_good and each.loss is not None]
    worst = max(losses, default=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # parts of it are marked as experimental
        was = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            sampler: Any
            if kind == "tpe":
                sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, multivariate=True)
            else:
                sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=0, deterministic_objective=False)
            study = optuna.create_study(sampler=sampler)
            spaces = {
                each.path: _distribution(optuna, each.num_values if each.scale == "choice" else None)
                for each in search.space.dimensions
            }
            for each in tried:
                # What diverged, was pruned or still runs counts as the worst so far: do not go there now.
                pairs = zip(search.space.dimensions, each.units, strict=True)
                params = {one.path: _coordinate(one, unit) for one, unit in pairs}
                value = each.loss if each.is_good else worst
                study.add_trial(optuna.trial.create_trial(params=params, distributions=spaces, value=value))
            trial = study.ask(spaces)
            return [_unit(one, trial.params[one.path]) for one in search.space.dimensions]
        finally:
            optuna.logging.set_verbosity(was)


def _distribution(optuna: Any, choices: int | None) -> Any:
    if choices is not None:
        return optuna.distributions.CategoricalDistribution(range(choices))
    return optuna.distributions.FloatDistribution(0.0, 1.0)


def _coordinate(one: Dimension, unit: float) -> float:
    """As Optuna has it: the place of a choice, or a number from 0 to 1."""
    return min(int(unit * len(one.choices)), len(one.choices) - 1) if one.scale == "choice" else unit


def _unit(one: Dimension, coordinate: float) -> float:
    return (coordinate + 0.5) / len(one.choices) if one.scale == "choice" else min(max(coordinate, 0.0), LAST)


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
