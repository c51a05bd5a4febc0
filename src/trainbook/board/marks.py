"""What is marked on a curve: what the guard did, resumes and checkpoints, and what the doctor found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainbook.board.answers import text_of

MARKED = {  # kind of event: the mark's kind, severity and title
    "skip": ("skip", "warning", "Update rejected"),
    "rollback": ("rollback", "warning", "Rolled back"),
    "quarantine": ("quarantine", "warning", "Samples quarantined"),
    "remedy": ("remedy", "info", "Learning rate lowered"),
    "products": ("remedy", "info", "fp8 given up"),
    "oom": ("oom", "warning", "Out of memory"),
    "corruption": ("corruption", "warning", "A device miscalculated"),
    "resume": ("resume", "info", "Resumed"),
    "checkpoint": ("checkpoint", "info", "Checkpoint"),
}
MOST_OF_A_KIND = 400  # of more, those that stand close together are one
LONGEST = 1_000

Facts = dict[str, Any]


def marks_of(events: Sequence[Mapping[str, Any]], findings: Sequence[Facts]) -> list[Facts]:
    by_kind: dict[str, list[Facts]] = {}
    for event in events:
        if event.get("kind") in MARKED and event.get("count") != 0 and isinstance(event.get("step"), int):
            mark = _of_event(event)
            by_kind.setdefault(mark["kind"], []).append(mark)
    found = [mark for marks in by_kind.values() for mark in thinned(marks)]
    found += [_of_finding(number, each) for number, each in enumerate(findings) if each["steps"]]
    return sorted(found, key=lambda mark: (mark["step"], mark["kind"]))


def _of_event(event: Mapping[str, Any]) -> Facts:
    kind, severity, title = MARKED[event["kind"]]
    step = event["step"]
    return {
        "step": step,
        "first": step,
        "last": step,
        "count": 1,
        "kind": kind,
        "severity": severity,
        "title": f"{title}, step {step:,}",
        "text": text_of(event.get("reason"), LONGEST),
        "command": None,
    }


def thinned(marks: list[Facts]) -> list[Facts]:
    """Those that stand in one stretch of steps become one, which says how many they are."""
    if len(marks) <= MOST_OF_A_KIND:
        return marks
    first, last = min(mark["step"] for mark in marks), max(mark["step"] for mark in marks)
    stretches: dict[int, list[Facts]] = {}
    for mark in marks:
        stretches.setdefault((mark["step"] - first) * MOST_OF_A_KIND // (last - first + 1), []).append(mark)
    return [_together(each) for each in stretches.values()]


def _together(marks: list[Facts]) -> Facts:
    first, last = min(mark["step"] for mark in marks), max(mark["step"] for mark in marks)
    if len(marks) == 1:
        return marks[0]
    title = f"{marks[0]['title'].partition(',')[0]} {len(marks):,} times, steps {first:,} to {last:,}"
    return {**marks[0], "step": first, "first": first, "last": last, "count": len(marks), "title": title}


def _of_finding(number: int, finding: Facts) -> Facts:
    first, last = finding["steps"]
    return {
        "step": first,
        "first": first,
        "last": last,
        "count": 1,
        "kind": "finding",
        "severity": finding["severity"],
        "title": finding["title"],
        "text": " ".join(finding["evidence"]),
        "command": finding["command"],
        "finding": number,
    }
