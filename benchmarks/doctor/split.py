"""Which runs are for developing rules and faults, and which are kept to report on: by kinds and by seeds.

In each group of kinds, every second one (in an order drawn once from the group's name) is only ever in the held-out
half. The other kinds are in both, with other seeds. So the held-out half answers two questions: how the rules do on
kinds that they were developed on, and how on kinds that nobody has looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

HALVES = ("development", "held-out")
SEEDS = {"development": (0, 1, 2), "held-out": (5, 6, 7, 8, 9)}
CLEAN_SEEDS = {"development": (0, 1, 2), "held-out": (5, 6, 7)}


def shared(groups: Mapping[str, str]) -> set[str]:
    """Of names with their groups, those that are in both halves; the others are in the held-out half only."""
    chosen: set[str] = set()
    takes_first = True
    for group in sorted(set(groups.values())):
        names = sorted(name for name, its_group in groups.items() if its_group == group)
        Random(f"split of {group}").shuffle(names)
        chosen |= set(names[0 if takes_first else 1 :: 2])
        if len(names) % 2:  # where one is over, the halves take turns
            takes_first = not takes_first
    return chosen


def halves_of(name: str, groups: Mapping[str, str]) -> tuple[str, ...]:
    return HALVES if name in shared(groups) else ("held-out",)
