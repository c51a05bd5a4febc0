"""What a law is, how it is registered, and what it judges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trainbook.errors import Problem
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config
from trainbook.knobs.origin import Origin
from trainbook.knobs.values import show


@dataclass(frozen=True)
class Settings:
    """Values with their origins: what a law judges."""

    config: Config
    origins: dict[str, Origin]

    def get(self, path: str) -> Any:
        return self.config.get(path)

    def is_set(self, path: str) -> bool:
        """The user asked for something else than the default: a recipe's value may be idle beside what was asked."""
        origin = self.origins[path]
        is_asked = origin.is_the_users and not origin.is_taken_over
        return is_asked and self.get(path) != by_path()[path].field.default

    def is_written(self, path: str) -> bool:
        """The user wrote it down, be it with the value it has by default."""
        return self.origins[path].is_the_users

    def is_overridden(self, path: str) -> bool:
        """The user wrote it on the command line, over what a file says."""
        return self.origins[path].kind == "override"

    def gives_way(self, path: str, *to: str) -> bool:
        """A value of a lower layer gives way to what a higher one asks for; two values of one layer contradict."""
        origin = self.origins[path]
        # In a file that we have written, a default is nobody's wish either.
        asked = [other for other in to if not origin.is_taken_over or self.is_overridden(other) or self.is_set(other)]
        return 0 < _layer(origin) < max((_layer(self.origins[other]) for other in asked), default=0)

    def idle(self, path: str) -> Settings:
        """The same, where a value is no longer what its author asked for: it may have no effect."""
        return Settings(self.config, self.origins | {path: replace(self.origins[path], is_taken_over=True)})

    def having(self, path: str, value: Any, reason: str) -> Settings:
        """The same with another value, which follows from others."""
        section, name = path.split(".")
        changed = getattr(self.config, section).model_copy(update={name: value})
        config = self.config.model_copy(update={section: changed})
        return Settings(config, self.origins | {path: Origin("derived", reason)})

    def show(self, path: str) -> str:
        by_default = " (the default)" if self.origins[path].kind == "default" else ""
        return show(self.get(path)) + by_default

    def place(self, *paths: str) -> str:
        origins = [self.origins[path] for path in paths]
        stated = [origin.place for origin in origins if origin.kind != "default"]
        return ", ".join(dict.fromkeys(stated)) or "default"


def _layer(origin: Origin) -> int:
    """Who wrote a value: nobody, a packaged recipe or a pretrained model, a file, the command line."""
    if origin.kind in ("default", "derived"):
        return 0
    if origin.is_taken_over:
        return 1
    return {"recipe": 1, "pretrained": 1, "file": 2, "override": 3}[origin.kind]


Broken = tuple[tuple[str, ...], str, str]
Check = Callable[[Settings], Iterator[Broken]]


@dataclass(frozen=True)
class Law:
    paths: tuple[str, ...]
    text: str
    check: Check
    yields: bool = False  # the first path that it names may be reset where a higher layer wrote one of the others


LAWS: list[Law] = []


def law(*paths: str, yields: bool = False) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        LAWS.append(Law(paths, (check.__doc__ or "").strip(), check, yields))
        return check

    return register


def broken_laws(settings: Settings, refused: set[str] | frozenset[str] = frozenset()) -> list[Problem]:
    """Every problem, in the order of the laws. `refused`: paths without a value that could be judged."""
    return [
        Problem(settings.place(*paths), paths[0], message, hint)
        for each in LAWS
        if not refused.intersection(each.paths)
        for paths, message, hint in each.check(settings)
    ]


def laws_of(path: str) -> list[Law]:
    return [each for each in LAWS if path in each.paths]


def no_effect(path: str, unless: str, *needed: Any) -> None:
    """Registers the law that a knob may be set only where another one has one of the needed values."""
    words = " or ".join(show(value) for value in needed)

    def check(s: Settings) -> Iterator[Broken]:
        if s.is_set(path) and s.get(unless) not in needed:
            yield (path, unless), f"has no effect unless {unless} is {words}, but that is {s.show(unless)}.", ""

    check.__doc__ = f"{path} has an effect only if {unless} is {words}."
    law(path, unless, yields=True)(check)


def no_effect_with(path: str, other: str, *idle: Any) -> None:
    """Registers the same law where the values that leave a knob idle are the fewer ones."""
    words = " or ".join(show(value) for value in idle)

    def check(s: Settings) -> Iterator[Broken]:
        if s.is_set(path) and s.get(other) in idle:
            yield (path, other), f"has no effect with {other} {s.show(other)}.", ""

    check.__doc__ = f"{path} has no effect with {other} {words}."
    law(path, other, yields=True)(check)
