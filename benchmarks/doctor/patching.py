"""Mistakes in code: each is a context in which Trainbook makes it, and behind which it is itself again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

Patch = AbstractContextManager[None]


class Place(NamedTuple):
    """What is replaced: a function of a module, or a method of a class."""

    owner: Any
    name: str

    @property
    def content(self) -> Any:
        return vars(self.owner)[self.name]


@contextmanager
def replaced(place: Place, make: Callable[[Any], Any]) -> Iterator[None]:
    """`make` gives the new function from the old one."""
    before = place.content
    setattr(place.owner, place.name, make(before))
    try:
        yield
    finally:
        setattr(place.owner, place.name, before)


@contextmanager
def together(*patches: Patch) -> Iterator[None]:
    with ExitStack() as held:
        for patch in patches:
            held.enter_context(patch)
        yield
