"""Does a fault do anything? Each run beside its clean twin: the same seed, data and knobs, without the fault."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from entries import case_of
from faults import KINDS
from runner import DATA, Entry, run_all

from trainbook.runs import RunFolder

SHOWN = ("grad_norm", "clipped", "update_ratio", "attention_logit_max", "log_z", "step_seconds", "data_wait_seconds")


def probes(kinds: Sequence[str], architectures: Sequence[str], seeds: Sequence[int]) -> list[Entry]:
    """Runs to look at while faults are made: seeds of the development half, whichever half the kind is reported in."""
    return [
        Entry(name, architecture, seed, "development", kind.causes)
        for name, kind in KINDS.items()
        if name in kinds
        for architecture in kind.architectures
        if not architectures or architecture in architectures
        for seed in seeds
    ]


def validate(entries: Sequence[Entry], out: Path, jobs: int) -> int:
    twins = [_twin(entry, out) for entry in entries]
    pairs = zip(twins, entries, strict=True)
    run_all(list(dict.fromkeys(run for pair in pairs for run in pair)), out, jobs)
    for entry, twin in zip(entries, twins, strict=True):
        if entry.is_finished(out) and twin.is_finished(out):
            print("\n".join(compare(entry, entry.folder(out), twin.folder(out))))
    return 0


def check_clean(entries: Sequence[Entry], out: Path, jobs: int) -> int:
    """A line a run: a setting that learns little is not a healthy one."""
    run_all(entries, out, jobs)
    for entry in entries:
        if entry.is_finished(out):
            found = facts(entry.folder(out))
            accuracy = "" if found["accuracy"] is None else f"  accuracy {found['accuracy']:.3f}"
            losses = f"{found['first']:.2f} > {found['train']:.3f}, eval {found['eval']:.3f} (best {found['best']:.3f})"
            print(f"{entry.name:<36} {losses}{accuracy}  {found['events'] or ''}  {found['ended']}")
    return 0


@cache
def _first_twin(overrides: tuple[str, ...], stop_at: int | None) -> list[Entry]:
    return []


def _twin(entry: Entry, out: Path) -> Entry:
    """Many kinds have the same twin: it is run once."""
    twin = replace(entry, is_twin=True)
    case = case_of(twin, out / DATA)
    known = _first_twin(tuple(case.overrides), case.stop_at)
    known.append(twin)
    return known[0]


def compare(entry: Entry, faulty: Path, clean: Path) -> list[str]:
    one, other = facts(faulty), facts(clean)
    lines = [f"{entry.name}  [{'/'.join(entry.causes)}]  {one['ended']}"]
    curves = [f"{each['first']:.2f} > {each['train']:.3f}, eval {each['eval']:.3f}" for each in (one, other)]
    lines.append(f"  loss      {curves[0]}   (twin {curves[1]})   effect {one['eval'] - other['eval']:+.3f}")
    if one["accuracy"] is not None:
        lines.append(f"  accuracy  {one['accuracy']:.3f}   (twin {other['accuracy']:.3f})")
    differing = [
        f"{name} {one[name]:.3g} ({other[name]:.3g})"
        for name in SHOWN
        if not math.isclose(one[name], other[name], rel_tol=0.3)
    ]
    lines.append(f"  other     {', '.join(differing) or '-'}; memory {one['memory']:.2f} ({other['memory']:.2f})")
    if one["events"] != other["events"]:
        lines.append(f"  events    {one['events']}   (twin {other['events']})")
    return lines


def facts(folder: Path) -> dict[str, Any]:
    run = RunFolder(folder)
    rows, evaluations = run.metrics("train"), run.metrics("eval")
    late = rows[-max(1, len(rows) // 4) :]
    kinds = Counter(event["kind"] for event in run.events())
    for usual in ("start", "finish", "checkpoint"):
        kinds.pop(usual, None)
    found: dict[str, Any] = {name: _mean(row.get(name) for row in late) for name in SHOWN}
    return {
        **found,
        "first": rows[0]["loss"] if rows else math.nan,
        "train": _mean(row["loss"] for row in late),
        "eval": evaluations[-1]["loss"] if evaluations else math.nan,
        "best": min((row["loss"] for row in evaluations), default=math.nan),
        "accuracy": evaluations[-1].get("accuracy") if evaluations else None,
        "memory": rows[-1]["memory_bytes"] / rows[len(rows) // 4]["memory_bytes"] if rows else math.nan,
        "events": dict(kinds),
        "ended": json.loads((folder / "bench.json").read_text())["ended"],
    }


def _mean(values: Any) -> float:
    known = [value for value in values if value is not None]
    return fmean(known) if known else math.nan
