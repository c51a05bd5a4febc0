"""Points by a model of what was found so far: Optuna's tree-structured Parzen estimator and Gaussian process.

Optuna only suggests. It is asked in a study in memory that is filled with our own ledger's trials, so nothing of its
storages, heartbeats and retries is relied on. All coordinates are numbers in [0, 1) on the knob's own scale: log scales
of 1 - x, and steps on a log scale, which Optuna does not know, are nothing that it has to know.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from trainbook.errors import MissingExtra
from trainbook.study.space import LAST, Dimension
from trainbook.study.tune.methods.draws import sobol, sobol_points
from trainbook.study.tune.methods.point import PointSearch, SearchPoint, Tried, all_points, base_values, key, new_points

FIRST = 10  # even points, before there is anything to model; or a quarter of all, if that is fewer
SEEDS = 2**32  # Optuna takes no more of them
TRIES = 3  # for a point that was not tried yet, in a space of few points


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
    for attempt in range(TRIES):
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
