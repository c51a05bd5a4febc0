"""Every run of the bench, by half; and from its name to what is trained."""

from __future__ import annotations

from pathlib import Path

import clean
from case import Case
from faults import KINDS
from runner import Entry
from split import CLEAN_SEEDS, HALVES, SEEDS, halves_of
from texts import Files

CLEAN = "clean"
FAULT_GROUPS = {name: kind.group for name, kind in KINDS.items()}


def all_entries() -> list[Entry]:
    return [*fault_entries(), *clean_entries()]


def fault_entries() -> list[Entry]:
    return [
        Entry(name, architecture, seed, half, kind.causes)
        for name, kind in KINDS.items()
        for half in halves_of(name, FAULT_GROUPS)
        for architecture in kind.architectures
        for seed in SEEDS[half]
    ]


def clean_entries() -> list[Entry]:
    return [
        Entry(CLEAN, name, seed, half)
        for name in clean.SETTINGS
        for half in halves_of(name, clean.GROUPS)
        for seed in CLEAN_SEEDS[half]
    ]


def half_of(seed: int) -> str:
    """Of a run that is asked for by itself: what its seed says."""
    return next((half for half in HALVES if seed in SEEDS[half]), "held-out")


def case_of(entry: Entry, data: Path) -> Case:
    files = Files(data)
    if entry.kind == CLEAN:
        case = Case(clean.SETTINGS[entry.architecture].architecture, entry.seed, files, is_faulty=False)
        clean.build(case, entry.architecture)
        return case
    case = Case(entry.architecture, entry.seed, files, is_faulty=not entry.is_twin, kind=entry.kind)
    KINDS[entry.kind].build(case)
    return case
