"""What may be looked at while rules are changed, and what is only ever scored in aggregate.

Of each group of kinds, every second one (in an order drawn once from the group's name) is `open`, the other `sealed`;
likewise healthy families, within each program. The programs take turns in being left out whole: a calibration that is
reported on one is fitted on the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from strangers.kinds import KINDS
from strangers.programs.names import PROGRAMS

OPEN, SEALED = "open", "sealed"


def opened(groups: Mapping[str, str]) -> set[str]:
    """Of names with their groups, those that are open."""
    chosen: set[str] = set()
    takes_first = True
    for group in sorted(set(groups.values())):
        names = sorted(name for name, its_group in groups.items() if its_group == group)
        Random(f"strangers, split of {group}").shuffle(names)
        chosen |= set(names[0 if takes_first else 1 :: 2])
        if len(names) % 2:
            takes_first = not takes_first
    return chosen


def half_of_kind(name: str) -> str:
    return OPEN if name in opened({kind.name: kind.group for kind in KINDS.values()}) else SEALED


def half_of_family(program: str, family: str) -> str:
    """A family is open in about half of the programs that have it."""
    return Random(f"strangers, family {program} {family}").choice((OPEN, SEALED))


def folds() -> list[tuple[str, tuple[str, ...]]]:
    """Each program, with those to develop on when it is left out."""
    return [(program, tuple(each for each in PROGRAMS if each != program)) for program in PROGRAMS]
