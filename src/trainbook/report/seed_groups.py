"""Groups of runs that differ in the seed alone: which runs belong to one, which count, and what it is called."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from trainbook.runs import jsonl

Row = dict[str, Any]

SEED = "training.seed"
# What is seen, kept or waited for, and how; runs that differ only in these and the seed are repeats of one thing.
ASIDE = ("logging.", "checkpoint.", "data.cache_dir", "data.num_workers", "data.prefetch_factor", "data.pin_memory")
ASIDE += ("distributed.timeout", "evaluation.eval_steps", "evaluation.eval_on_start", SEED)
FAULTS = "injected faults"  # beside the knobs, in what tells groups of runs apart


def group_of(origin: str, settings: Mapping[str, Any], seed: int | None, faults: Sequence[str] = ()) -> str | None:
    """The same for runs that differ in the seed alone; None where not enough is known. `faults`: that were injected."""
    if seed is None or not settings:
        return None
    counted = {path: value for path, value in settings.items() if not path.startswith(ASIDE)}
    what = {"origin": origin, **dict(sorted(counted.items())), **({FAULTS: list(faults)} if faults else {})}
    return hashlib.sha256(jsonl.dumps(what).encode()).hexdigest()[:12]


def repeats_of(rows: Iterable[Row]) -> dict[str, str]:
    """Of the runs whose group has another of their seed: the one that counts instead, which is the first of these rows
    that has finished, or else the first. A repeated seed is no new evidence."""
    by_seed: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.get("group") is not None and row.get("seed") is not None:
            by_seed.setdefault((row["group"], row["seed"]), []).append(row)
    found = {}
    for alike in by_seed.values():
        counts = min(alike, key=lambda row: row["status"] != "finished")  # of equals the first
        found |= {row["id"]: counts["id"] for row in alike if row is not counts}
    return found


def group_name(names: Sequence[str]) -> str:
    """Of runs that differ in the seed alone, one of each seed; the same in whichever order they are given."""
    first, more = min(names), len(names) - 1
    return f"{first} and {more} more seed{'s' * (more != 1)}" if more else first


def group_names(rows: Iterable[Row], repeats: Collection[str]) -> dict[str, str]:
    """By group, of those that have two seeds or more."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.get("group") is not None and row["id"] not in repeats:
            names.setdefault(row["group"], []).append(row["name"])
    return {group: group_name(found) for group, found in names.items() if len(found) > 1}
