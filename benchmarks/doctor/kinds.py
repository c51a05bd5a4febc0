"""What a kind of fault is: what is wrong, what a doctor should say of it, and how it is put in.

Each is a function of a `Case`: `base` and `use` are for the run and its clean twin, `change` and `patch` for the faulty
run alone. The first cause is the right one; others are named only where a run's files cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from case import ARCHITECTURES, Case


@dataclass(frozen=True)
class Kind:
    name: str
    group: str
    causes: tuple[str, ...]  # the right one, and others that will do
    architectures: tuple[str, ...]
    build: Callable[[Case], None]

    @property
    def what(self) -> str:
        return " ".join((self.build.__doc__ or "").split())


KINDS: dict[str, Kind] = {}


def fault(
    name: str, group: str, *causes: str, architectures: tuple[str, ...] = ARCHITECTURES
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    def register(build: Callable[[Case], None]) -> Callable[[Case], None]:
        KINDS[name] = Kind(name, group, causes, architectures, build)
        return build

    return register


def guard_by_seed(case: Case) -> None:
    """Every second run has the guard off: with it, a run that goes wrong looks different."""
    if case.seed % 2:
        case.base({"guard.enabled": False})
