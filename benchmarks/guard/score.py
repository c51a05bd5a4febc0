"""What the runs of the bench say, as figures with intervals: benchmarks/results/guard-*.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from guard import rates
from guard.healthy import judged
from guard.intervals import clustered, deviation, exact, mean_of
from guard.runner import HALVES, HEALTHY, healthy_file, read_rows

Row = dict[str, Any]
LOOPS, RUNS = "poison-loops", "poison-runs"


def healthy(out: Path) -> dict[str, Any]:
    """Each half under each policy that was run."""
    found: dict[str, Any] = {}
    for half in HEALTHY:
        files = sorted((out / half).glob("*.jsonl"))
        without = read_rows(healthy_file(out, half, "none"))
        for file in files:
            if file.stem in ("none", "trace", LOOPS, RUNS):
                continue
            families, in_all = judged(read_rows(file), without)
            found.setdefault(half, {})[file.stem] = {
                "all": in_all.summary,
                "families": [each.summary for each in families],
                "stops": [row for row in read_rows(file) if row["verdict"]][:20],
            }
    return found


def poison(out: Path) -> dict[str, Any]:
    """Each half: by placement and by kind, under each policy; and what was quarantined."""
    found: dict[str, Any] = {}
    for half in HALVES:
        loops, runs = (read_rows(out / half / f"{name}.jsonl") for name in (LOOPS, RUNS))
        found[half] = {
            "loops": {
                "by_placement": poisoned(loops, lambda row: row["placement"]),
                "by_kind": poisoned(loops, lambda row: row["kind"]),
                "clean": clean(loops),
            },
            "runs": {
                "by_kind": poisoned(runs, lambda row: f"{row['program']}|{row['kind']}"),
                "by_placement": poisoned(runs, lambda row: f"{row['program']}|{row['placement']}"),
                "clean": clean(runs),
            },
        }
    return found


def poisoned(rows: Sequence[Row], key: Callable[[Row], str]) -> list[Row]:
    """One line for each key and policy. The final loss is compared with the same run without a guard on clean data, in
    units of the spread that seeds alone make there."""
    twins = {(row["program"], row["seed"]): row["quality"] for row in rows if _is_twin(row)}
    spreads = {
        name: deviation([quality for (program, _), quality in twins.items() if program == name])
        for name in {program for program, _ in twins}
        if sum(program == name for program, _ in twins) > 1
    }
    found = []
    bad = [row for row in rows if row["kind"] != "clean"]
    for name in dict.fromkeys(map(key, bad)):
        for policy in dict.fromkeys(row["policy"] for row in bad):
            these = [row for row in bad if key(row) == name and row["policy"] == policy]
            if these:
                found.append({"name": name, "policy": policy, **_figures(these, twins, spreads)})
    return found


def _figures(rows: Sequence[Row], twins: dict[tuple[str, int], float], spreads: dict[str, float]) -> Row:
    def share(hits: str, of: str) -> Any:
        return clustered([row.get(hits, 0) for row in rows], [row.get(of, 0) for row in rows])

    differences = [
        (row["seed"], (row["quality"] - twins[row["program"], row["seed"]]) / spreads[row["program"]])
        for row in rows
        if row["program"] in spreads and (row["program"], row["seed"]) in twins
    ]
    by_seed: dict[int, list[float]] = {}
    for seed, each in differences:
        if math.isfinite(each):
            by_seed.setdefault(seed, []).append(each)
    finite = [each for these in by_seed.values() for each in these]
    return {
        "runs": len(rows),
        "rejected": share("bad_rejected", "bad"),
        "rejected_or_damped": share("bad_damped", "bad"),
        "rejected_after": share("after_rejected", "after"),
        "precision": share("quarantined_rightly", "quarantined"),
        "recall": share("quarantined_rightly", "bad_samples"),
        "stopped": exact(sum(row["stopped"] for row in rows), len(rows)),
        "rolled_back": exact(sum(row["rollbacks"] > 0 for row in rows), len(rows)),
        "lost": len(differences) - len(finite),  # stopped, or not a number
        "loss": mean_of([sum(these) / len(these) for these in by_seed.values()]),  # runs of one seed share their twin
        "median_loss": sorted(finite)[len(finite) // 2] if finite else math.nan,
    }


def clean(rows: Sequence[Row]) -> list[Row]:
    """False alarms on the clean twins of the same programs."""
    found = []
    these = [row for row in rows if row["kind"] == "clean"]
    for policy in dict.fromkeys(row["policy"] for row in these):
        own = [row for row in these if row["policy"] == policy]
        rejected = exact(sum(row["good_rejected"] for row in own), sum(row["good"] for row in own))
        quarantined = sum(row.get("quarantined", 0) for row in own)
        found.append({"policy": policy, "runs": len(own), "rejected": rejected, "quarantined": quarantined})
    return found


def _is_twin(row: Row) -> bool:
    return row["kind"] == "clean" and row["policy"] == "none" and math.isfinite(row["quality"])


def too_high(out: Path) -> dict[str, Any]:
    return {"steps": rates.STEPS, "table": rates.scored(read_rows(out / "rates.jsonl"))}


def short_lines(found: dict[str, Any]) -> Iterable[str]:
    """Of the bad data, for a terminal."""
    for half, parts in found.items():
        for part, tables in parts.items():
            for name, table in tables.items():
                if name == "clean" or not table:
                    continue
                yield f"{half}, {part}, {name}"
                yield f"{'':<42}{'runs':>5}{'reject':>8}{'after':>8}{'precis':>8}{'recall':>8}  final loss, in seed SD"
                for row in table:
                    shares = (row[each][2] for each in ("rejected", "rejected_after", "precision", "recall"))
                    figures = "".join(f"{value:>8.1%}" if value == value else f"{'-':>8}" for value in shares)
                    yield (
                        f"  {row['name']:<32}{row['policy']:<8}{row['runs']:>5}{figures}{row['loss'][0]:>+9.2f}"
                        f" ({row['loss'][1]:+.2f} to {row['loss'][2]:+.2f}), {row['lost']} lost"
                    )
