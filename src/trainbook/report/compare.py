"""Compares runs: their results, the knobs in which they differ, and what the difference means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from trainbook.errors import UserError
from trainbook.nearest import did_you_mean
from trainbook.report.curves import (
    By,
    Curve,
    curve_of,
    seconds_of,
    speed_of,
    steps_of,
    tokens_of,
    where_all_have_values,
)
from trainbook.report.seed_groups import ASIDE, FAULTS, SEED, group_name
from trainbook.runs.foreign.metrics import place
from trainbook.runs.run_record import RunRecord
from trainbook.runs.schema import METRICS
from trainbook.study.seeds import Estimate, corrected, of_groups, of_pairs

WAYPOINTS = tuple(part / 8 for part in range(1, 9))  # of the way that both have gone


@dataclass(frozen=True)
class ComparedRun:
    """A run, as the comparison sees it."""

    label: str
    record: RunRecord
    curve: Curve | None
    seed: int | None

    @cached_property
    def what_counts(self) -> frozenset[tuple[str, Any]]:
        """The settings that have an effect on the result, but for the seed. Equal ones are quick to compare."""
        settings = self.record.settings.items()
        counted = [(path, _hashable(value)) for path, value in settings if not path.startswith(ASIDE)]
        return frozenset([*counted, (FAULTS, self.faults)]) if self.faults else frozenset(counted)

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """That were injected on purpose."""
        return tuple(map(str, self.record.facts.get("injected_faults") or ()))

    @property
    def is_lost(self) -> bool:
        """Whether the newest values of what is compared are NaN or infinite."""
        return self.curve is not None and self.curve.is_lost

    @property
    def ended_without_a_number(self) -> bool:
        """Whether the loss was NaN or infinite at the end."""
        values = [row["loss"] for row in self.record.train[-1:] if isinstance(row.get("loss"), (int, float))]
        return any(not math.isfinite(value) for value in values)


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone."""

    label: str
    sides: list[ComparedRun]
    shared: list[Curve]  # of each, with the places that all of them have; empty where there is none

    @property
    def curves(self) -> list[Curve]:
        return [side.curve for side in self.sides if side.curve is not None]

    @property
    def end(self) -> float | None:
        """The last place that all of them have."""
        return self.shared[0].end if self.shared else None

    @property
    def values(self) -> list[float]:
        """There."""
        return [curve.at(curve.end) for curve in self.shared]


@dataclass(frozen=True)
class Pairing:
    """Another group against the first one, where all of their runs have values."""

    reference: Group
    other: Group
    at: float  # the last such place
    runs: tuple[list[float], list[float]]  # values there, of each run of the reference and of the other
    way: list[tuple[float, float]]  # place, difference
    estimate: Estimate | None  # None: there are no repeated seeds on both sides
    p: float | None = None  # corrected for the number of comparisons

    @property
    def values(self) -> tuple[float, float]:
        """Means of the reference and of the other."""
        return fmean(self.runs[0]), fmean(self.runs[1])

    @property
    def difference(self) -> float:
        return self.values[1] - self.values[0]

    @property
    def is_exact(self) -> bool:
        """Whether all have a value at this very place, not at one near to it."""
        return all(np.isin(self.at, curve.places) for curve in (*self.reference.curves, *self.other.curves))


@dataclass(frozen=True)
class Comparison:
    metric: str
    split: str
    by: By
    sides: list[ComparedRun]
    groups: list[Group]
    pairings: list[Pairing]  # each other group that has a place in common with the first one
    differences: Mapping[str, Mapping[str, Any]]  # knob path -> run -> value, of the knobs that differ
    missing: Mapping[str, list[str]]  # run -> what others logged and it did not

    @property
    def has_repeats(self) -> bool:
        return any(len(group.sides) > 1 for group in self.groups)

    @property
    def higher_is_better(self) -> bool | None:
        return METRICS[self.metric].higher_is_better if self.metric in METRICS else None


def compare(records: Sequence[RunRecord], metric: str = "loss", by: By = "steps") -> Comparison:
    if len(records) < 2:
        raise UserError(f"compare: must be given two runs or more, but got {len(records)}.")
    labels = _labels(records)
    split, name = _split_and_metric(records, metric)
    sides = [
        ComparedRun(label, record, curve_of(record, name, split, by), record.settings.get(SEED))
        for label, record in zip(labels, records, strict=True)
    ]
    with_it = [side for side in sides if side.curve is not None]
    differences = _differences(sides)
    groups = _groups(with_it, differences, by)
    return Comparison(name, split, by, sides, groups, _pairings(groups, by), differences, _missing(sides))


def best_of(side: ComparedRun, higher_is_better: bool | None) -> tuple[float, float] | None:
    """Place and value of the best evaluation; of training metrics there is none, a lucky batch is no success."""
    curve = side.curve
    if curve is None or curve.is_noisy or higher_is_better is None:
        return None
    at = int(np.argmax(curve.values) if higher_is_better else np.argmin(curve.values))
    return curve.places[at].item(), curve.values[at].item()


def summary(side: ComparedRun, higher_is_better: bool | None) -> dict[str, Any]:
    """The row of a run in the table."""
    record, curve, best = side.record, side.curve, best_of(side, higher_is_better)
    return {
        "name": side.label,
        "from": record.facts.get("tool", "Trainbook"),
        "path": str(record.path) if record.path is not None else None,
        "seed": side.seed,
        "status": record.facts.get("status"),
        "steps": steps_of(record),
        "tokens": tokens_of(record),
        "seconds": seconds_of(record),
        "tokens_per_second": speed_of(record),
        "final": curve.at(curve.end) if curve is not None and not side.is_lost else None,
        "is_lost": side.is_lost,
        "best": best[1] if best else None,
        "best_at": best[0] if best else None,
    }


def _labels(records: Sequence[RunRecord]) -> list[str]:
    """Names; longer ones where two are the same."""
    places = [record.path.resolve() if record.path is not None else None for record in records]
    for number, where in enumerate(places):
        if where is not None and where in places[:number]:
            raise UserError(f"compare: each run must be named once, but '{records[number].name}' is named twice.")
    names = [record.name for record in records]
    if len(set(names)) == len(names):
        return names
    longer = [
        f"{where.parent.name}/{name}" if where is not None else name for name, where in zip(names, places, strict=True)
    ]
    if len(set(longer)) == len(longer):
        return longer
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _split_and_metric(records: Sequence[RunRecord], asked: str) -> tuple[str, str]:
    """`loss` is the validation's where all runs have it, else training's; `train_loss` and `eval_loss` choose."""
    have = {
        "eval": [record.rows("eval").number_names for record in records],
        "train": [record.rows("train").number_names for record in records],
    }
    split, metric, _ = place(asked)
    name = asked if any(asked in names for names in (*have["train"], *have["eval"])) else metric or asked
    order = (split,) if split is not None and name != asked else ("eval", "train")
    counts = {side: sum(name in names for names in have[side]) for side in order}
    best = max(order, key=lambda side: counts[side])  # of equals the first: validation
    if counts[best] < 2:
        raise UserError(_why_not(records, asked, name, have))
    return best, name


def _why_not(records: Sequence[RunRecord], asked: str, name: str, have: Mapping[str, list[set[str]]]) -> str:
    words = {"train": "in training", "eval": "in validation"}
    holders = [
        f"{record.name} ({words[side]})"
        for side, sets in have.items()
        for record, names in zip(records, sets, strict=True)
        if name in names
    ]
    if holders:
        return (
            f"--metric {asked}: must be in two runs or more of the same kind, but got it of {', '.join(holders)} only."
        )
    known = set.union(*have["train"], *have["eval"]) - {"step", "segment", "time"}
    if not known:
        names = " and ".join(f"'{record.name}'" for record in records)
        return f"compare: must be given runs that logged something, but {names} logged nothing."
    hint = did_you_mean(name, known)
    return f"--metric {asked}: no run logged it. They have {', '.join(sorted(known))}.{hint}"


def _differences(sides: Sequence[ComparedRun]) -> dict[str, dict[str, Any]]:
    """The knobs of which two known values differ, in the order of the tree; before them faults that were injected."""
    faults = {side.label: ", ".join(side.faults) or "none" for side in sides}
    paths = dict.fromkeys(path for side in sides for path in side.record.settings)
    found: dict[str, dict[str, Any]] = {FAULTS: faults} if len(set(faults.values())) > 1 else {}
    for path in paths:
        known = {side.label: side.record.settings[path] for side in sides if path in side.record.settings}
        values = list(known.values())
        if any(value != values[0] for value in values[1:]):
            found[path] = known
    return found


def _groups(sides: Sequence[ComparedRun], differences: Mapping[str, Mapping[str, Any]], by: By) -> list[Group]:
    """Settings must be known to be the same; a run without them, or of a seed that is there already, stays alone. Of
    two with one seed the first that has finished counts."""
    order = sorted(sides, key=lambda side: side.record.facts.get("status") != "finished")
    together: list[list[ComparedRun]] = []
    repeated: dict[Any, list[list[ComparedRun]]] = {}  # by what is the same in a group
    for side in order:
        is_known = side.seed is not None and bool(side.what_counts)
        alike = repeated.setdefault((side.what_counts, side.record.origin), []) if is_known else []
        for group in alike:
            if side.seed not in [one.seed for one in group]:
                group.append(side)
                break
        else:
            together.append([side])
            alike.append(together[-1])
    places = {side.label: place for place, side in enumerate(sides)}
    together = [sorted(group, key=lambda side: places[side.label]) for group in together]
    together.sort(key=lambda group: places[group[0].label])
    return [Group(_group_label(group, together, differences), group, _shared(group, by)) for group in together]


def _shared(sides: Sequence[ComparedRun], by: By) -> list[Curve]:
    return where_all_have_values([side.curve for side in sides if side.curve is not None], by)


def _hashable(value: Any) -> Any:
    """Equal for equal values."""
    if isinstance(value, Mapping):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value


def _group_label(
    group: list[ComparedRun], groups: list[list[ComparedRun]], differences: Mapping[str, Mapping[str, Any]]
) -> str:
    if len(group) == 1:
        return group[0].label
    between = [path for path in differences if not path.startswith(ASIDE)]
    known = [path for path in between if group[0].label in differences[path]]
    if 1 <= len(known) <= 2 and len(groups) > 1:
        return ", ".join(
            f"{path.split('.')[-1]}={value_text(path, differences[path][group[0].label])}" for path in known
        )
    return group_name([side.label for side in group])


def value_text(path: str, value: Any) -> str:
    """A value of what differs, as a person reads it."""
    from trainbook.knobs.values import show

    return value if path == FAULTS else show(value)


def _pairings(groups: Sequence[Group], by: By) -> list[Pairing]:
    """Each other group against the first, but for those that have no place in common with it."""
    found = [_pairing(groups[0], other, by) for other in groups[1:]]
    pairings = [pairing for pairing in found if pairing is not None]
    repeated = [number for number, pairing in enumerate(pairings) if pairing.estimate is not None]
    values = corrected([estimate.p for number in repeated if (estimate := pairings[number].estimate) is not None])
    for number, p in zip(repeated, values, strict=True):
        pairings[number] = replace(pairings[number], p=p)
    return pairings


def _pairing(reference: Group, other: Group, by: By) -> Pairing | None:
    shared = _shared((*reference.sides, *other.sides), by)
    if not shared:
        return None
    ours, theirs = shared[: len(reference.sides)], shared[len(reference.sides) :]
    places, first, at = shared[0].places, shared[0].start, shared[0].end
    wanted = [first + share * (at - first) for share in WAYPOINTS]
    chosen = dict.fromkeys(places[np.argmin(np.abs(places - place))].item() for place in wanted)
    way = [(place, _mean_at(theirs, place) - _mean_at(ours, place)) for place in chosen]
    runs = [curve.at(at) for curve in ours], [curve.at(at) for curve in theirs]
    return Pairing(reference, other, at, runs, way, _estimate(reference, other, runs))


def _mean_at(curves: Sequence[Curve], where: float) -> float:
    return fmean(curve.at(where) for curve in curves)


def _estimate(reference: Group, other: Group, values: tuple[list[float], list[float]]) -> Estimate | None:
    """By seed where both sides have the same seeds, two or more; else of the two groups."""
    ours, theirs = (
        dict(zip((side.seed for side in group.sides), found, strict=True))
        for group, found in zip((reference, other), values, strict=True)
    )
    if len(ours) < 2 or len(theirs) < 2:
        return None
    if ours.keys() == theirs.keys():
        return of_pairs([theirs[seed] - ours[seed] for seed in ours])
    return of_groups(list(ours.values()), list(theirs.values()))


def _missing(sides: Sequence[ComparedRun]) -> dict[str, list[str]]:
    logged = {
        side.label: {
            f"{'' if split == 'train' else 'eval '}{name}"
            for split in ("train", "eval")
            for name in side.record.rows(split).names
            if name in METRICS and name not in ("segment", "split", "best", "memory_kind")
        }
        for side in sides
    }
    everything = set().union(*logged.values())
    return {label: sorted(everything - names) for label, names in logged.items() if everything - names}
