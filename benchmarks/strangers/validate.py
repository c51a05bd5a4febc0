"""Does each fault harm, and does each healthy run learn? From what the finished runs recorded.

A fault harms if the model is clearly worse than its twin on what it is meant for. A kind that `misleads` need not: its
numbers do not mean what they say. A healthy run learns if its loss is clearly below that of the best constant.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from strangers.entries import Entry

WORSE = 1.15  # times the twin's loss …
BY = 0.02  # … and by so much, or by so much less accurate:
LESS_ACCURATE = 0.04
LEARNED = 0.85  # of the loss of the best constant


def loss_of(truth: dict[str, Any]) -> float:
    loss = (truth["true"] or {}).get("loss")
    return math.inf if loss is None or math.isnan(float(loss)) else float(loss)  # our own runs write NaN as a word


def harms(faulty: dict[str, Any], twin: dict[str, Any]) -> bool:
    one, other = loss_of(faulty), loss_of(twin)
    accuracy, usual = ((each["true"] or {}).get("accuracy") for each in (faulty, twin))
    if accuracy is not None and usual is not None and accuracy < usual - LESS_ACCURATE:
        return True
    return one > WORSE * other and one > other + BY * (twin["baseline"] or 1.0)


def counts(entry: Entry, truth: dict[str, Any], out: Path) -> bool | None:
    """A fault that does no harm is none, unless it misleads. None: nobody knows, its twin is not finished."""
    twin = replace(entry, is_twin=True)
    if truth["misleads"]:
        return True
    return harms(truth, twin.truth(out)) if twin.is_finished(out) else None


def learned(truth: dict[str, Any]) -> bool:
    return truth["ended"] == "finished" and (truth["baseline"] is None or loss_of(truth) < LEARNED * truth["baseline"])


def validate(entries: Sequence[Entry], out: Path) -> int:
    found: dict[str, list[tuple[str, bool, str]]] = defaultdict(list)
    weak = []
    for entry in entries:
        if not entry.is_finished(out):
            continue
        truth = entry.truth(out)
        if entry.is_healthy:
            if not learned(truth):
                weak.append(f"{entry.name}: {loss_of(truth):.3f}, best constant {truth['baseline']}, {truth['ended']}")
            continue
        twin = replace(entry, is_twin=True)
        if truth["misleads"] or not twin.is_finished(out):
            continue
        other = twin.truth(out)
        line = f"{truth['family']} {_told(truth)} beside {_told(other)}"
        found[entry.kind].append((f"{entry.program} {entry.seed}", harms(truth, other), line))
    for kind, rows in sorted(found.items()):
        harmless = [(where, line) for where, is_harmful, line in rows if not is_harmful]
        if harmless:
            print(f"{kind}: harms {len(rows) - len(harmless)} of {len(rows)}")
            for where, line in harmless:
                print(f"    {where:<16} {line}")
    print(f"{len(weak)} healthy runs that learned too little")
    for line in weak:
        print(f"    {line}")
    pairs = [is_harmful for rows in found.values() for _, is_harmful, _ in rows]
    print(f"{sum(pairs)} of {len(pairs)} faults harm")
    return 0


def _told(truth: dict[str, Any]) -> str:
    accuracy = (truth["true"] or {}).get("accuracy")
    return f"{loss_of(truth):.3f}" + ("" if accuracy is None else f" ({accuracy:.2f})")
