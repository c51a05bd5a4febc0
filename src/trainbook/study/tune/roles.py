"""The role of each knob in a study: scientific (its effect is asked for), nuisance (tuned, so that the comparison is
fair), or fixed (as it is, which the answer then depends on)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trainbook.errors import ConfigError, Problem
from trainbook.knobs.aliases import by_path, knobs_named, nearest_knobs_hint
from trainbook.knobs.config import Declaration
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.loading import ALTERNATIVES
from trainbook.knobs.origin import Loaded
from trainbook.knobs.text import YamlBlock, YamlEntry
from trainbook.knobs.values import BrokenLaw, check, show
from trainbook.study.space import Dimension, dimension

ROLES = ("scientific", "nuisance", "fixed")
SPECIFICS = ("low", "high", "choices", "scale", "step", "only_if")
LENGTHS = ("training.max_steps", "training.num_train_epochs", "training.max_tokens")
NOT_SEARCHED = {
    **dict.fromkeys(LENGTHS, "is not searched: a longer run nearly always wins. Fix it."),
    "training.seed": "is not searched: the best of several seeds is chance. The study repeats its best trials.",
}
SECTIONS_NOT_SEARCHED = {  # what they change is how a run is seen, judged or kept
    "evaluation": "is not searched: trials are compared by their evaluation, which must be the same for all.",
    "checkpoint": "is not searched: it does not affect what is learned.",
    "logging": "is not searched: it does not affect what is learned.",
}
Pair = tuple[str, Any]


@dataclass(frozen=True)
class Roles:
    scientific: tuple[Dimension, ...] = ()
    nuisance: tuple[Dimension, ...] | None = None  # None: the order of importance chooses
    fixed: tuple[Pair, ...] = ()
    places: dict[str, str] = field(default_factory=dict)  # file and line of each knob

    def fixed_overrides(self, over: Sequence[str] = ()) -> list[str]:
        """As overrides; without those that the command line has another value for."""
        named = {found.path for each in over for found in knobs_named(each.partition("=")[0].strip())}
        return [f"{path}={yaml_value(value)}" for path, value in self.fixed if path not in named]

    @property
    def arms(self) -> list[dict[str, Any]]:
        """Every combination of the values that are compared; one without values if nothing is.

        By name: a study that goes on counts them as it did, in whatever order its file has the knobs by now.
        """
        compared = sorted(self.scientific, key=lambda each: each.path)
        paths = [each.path for each in compared]
        return [dict(zip(paths, chosen, strict=True)) for chosen in itertools.product(*(e.choices for e in compared))]

    @property
    def num_arms(self) -> int:
        return math.prod(len(each.choices) for each in self.scientific)

    @property
    def searched(self) -> set[str]:
        return {each.path for each in (*self.scientific, *(self.nuisance or ()))}

    @property
    def settled(self) -> set[str]:
        """Knobs that have a role, and alternatives of fixed knobs: neither is chosen by its importance."""
        paths = self.searched | {path for path, _ in self.fixed}
        return paths.union(*(group for group in ALTERNATIVES if group & paths))

    def must_not_meet(self, loaded: Loaded, overrides: Sequence[str]) -> None:
        """Refuse a knob that the command line fixes and the study searches; likewise an alternative of a fixed knob."""
        problems = []
        for name in overrides:
            named = {found.path for found in knobs_named(name)}
            for path in named.union(*(group for group in ALTERNATIVES if group & named)) & self.searched:
                fixed = "is fixed" if path in named else f"is, by {name}, fixed"
                searches = f"but {self.places[path]} searches it. Keep one of the two."
                problems.append(Problem("override", path, f"{fixed} on the command line, {searches}"))
        if problems:
            raise ConfigError(problems)

    def must_be_met(self, loaded: Loaded) -> None:
        """A condition on a knob that is not searched holds in all trials, or in none."""
        problems = [
            Problem(
                self.places[each.path], each.path, f"is searched only if {path} is {show(wanted)}, which it never is."
            )
            for each in self.nuisance or ()
            for path, wanted in each.only_if
            if path not in self.searched and loaded.get(path) != wanted
        ]
        if problems:
            raise ConfigError(problems)


def read_roles(entries: dict[str, YamlEntry], where: str, problems: list[Problem]) -> Roles:
    reader = _RolesReader(where, problems)
    for role in ROLES:
        entry = entries.get(role)
        if entry is None or entry.value is None:
            continue
        if not isinstance(entry.value, YamlBlock):
            message = f"must be a mapping of knobs, but got {show(entry.value)}."
            problems.append(Problem(f"{where}:{entry.line}", role, message))
            continue
        for knob, path in _flat(entry.value):
            reader.knob(role, knob, path)
    reader.conditions()
    reader.alternatives()
    has_nuisance = "nuisance" in entries and isinstance(entries["nuisance"].value, YamlBlock)
    return Roles(
        tuple(reader.scientific), tuple(reader.nuisance) if has_nuisance else None, tuple(reader.fixed), reader.places
    )


def _may_be(searched: Dimension, value: Any) -> bool:
    """Whether a search ever comes to this very value: one of the choices or of the steps."""
    return bool(searched.num_values) and searched.has_place(value) and searched.at(searched.place(value)) == value


def _flat(block: YamlBlock, prefix: str = "") -> list[tuple[YamlEntry, str]]:
    """Knobs by dotted name, or in blocks by section; a block of `low`, `high` … belongs to a knob."""
    found = []
    for entry in block.entries:
        name = f"{prefix}{entry.name}"
        is_section = isinstance(entry.value, YamlBlock) and not knobs_named(name)
        is_section = is_section and not any(inner.name in SPECIFICS for inner in entry.value.entries)
        found += _flat(entry.value, f"{name}.") if is_section and entry.value.entries else [(entry, name)]
    return found


class _RolesReader:
    def __init__(self, where: str, problems: list[Problem]) -> None:
        self.where, self.problems = where, problems
        self.scientific: list[Dimension] = []
        self.nuisance: list[Dimension] = []
        self.fixed: list[Pair] = []
        self.places: dict[str, str] = {}
        self.roles: dict[str, str] = {}

    def knob(self, role: str, entry: YamlEntry, name: str) -> None:
        place = f"{self.where}:{entry.line}" if entry.line else self.where
        declaration = self._named(name, place)
        if declaration is None:
            return
        path = declaration.path
        if path in self.roles:
            message = f"has two roles, {self.roles[path]} and {role}. A knob has one."
            if self.roles[path] == role:  # by two of its names
                message = f"is twice in {role}. Keep one of the two."
            self.problems.append(Problem(f"{self.places[path]}, {place}", path, message))
            return
        self.roles[path], self.places[path] = role, place
        try:
            if role == "fixed":
                self.fixed.append((path, check(declaration, entry.value)))
                return
            why_not = NOT_SEARCHED.get(path) or SECTIONS_NOT_SEARCHED.get(declaration.section)
            if why_not:
                raise BrokenLaw(why_not)
            found = self._dimension(declaration, entry.value, place)
            if role == "scientific" and found.scale != "choice":
                raise BrokenLaw("is compared, so it needs a list of values.", "A range is for nuisance.")
            if role == "scientific" and found.only_if:
                raise BrokenLaw("is compared in all trials, so it cannot have only_if.", "A condition is for nuisance.")
            (self.scientific if role == "scientific" else self.nuisance).append(found)
        except BrokenLaw as law:
            self.problems.append(Problem(place, path, law.message, law.hint))

    def conditions(self) -> None:
        """A condition can only ask for a value that its knob may have; of a range without steps no value is met."""
        for each in (*self.scientific, *self.nuisance):
            for path, value in each.only_if:
                other = next((one for one in (*self.scientific, *self.nuisance) if one.path == path), None)
                if path == each.path or (other is not None and not _may_be(other, value)):
                    message = f"is searched only if {path} is {show(value)}, which it never is."
                    self.problems.append(Problem(self.places[each.path], each.path, message))

    def alternatives(self) -> None:
        """Of knobs that say the same in two ways a trial can have one: a second one is refused, or puts it aside."""
        searched = [each for each in (*self.scientific, *self.nuisance) if not each.only_if]
        for group in ALTERNATIVES:
            named = sorted(group & self.roles.keys())
            if len(named) > 1 and group & {each.path for each in searched}:
                places = ", ".join(self.places[path] for path in named)
                message = f"says the same as {named[1]}, which has a role too. Keep one of the two."
                self.problems.append(Problem(places, named[0], message))

    def _named(self, name: str, place: str) -> Declaration | None:
        found = knobs_named(name)
        if len(found) == 1:
            return found[0]
        if found:
            hint = f"Write one of {', '.join(each.path for each in found)}."
            self.problems.append(Problem(place, name, "needs its section.", hint))
            return None
        head, _, rest = name.rpartition(".")
        hint = nearest_knobs_hint(rest, head if head in {path.split(".")[0] for path in by_path()} else None)
        self.problems.append(Problem(place, name, "no such knob.", hint))
        return None

    def _dimension(self, declaration: Declaration, value: Any, place: str) -> Dimension:
        if value is None:
            return dimension(declaration)
        if isinstance(value, list):
            return dimension(declaration, choices=value)
        if not isinstance(value, YamlBlock):
            raise BrokenLaw(
                f"must be a range or a list of values, but got {show(value)}.", "One value belongs to fixed."
            )
        given = {entry.name: entry.value for entry in value.entries}
        unknown = next((name for name in given if name not in SPECIFICS), None)
        if unknown is not None:
            raise BrokenLaw(f"has no '{unknown}': a search takes {', '.join(SPECIFICS)}.")
        conditions = given.pop("only_if", None)
        return dimension(declaration, **given, only_if=self._conditions(conditions, place))

    def _conditions(self, given: Any, place: str) -> list[Pair]:
        if given is None:
            return []
        if not isinstance(given, YamlBlock):
            raise BrokenLaw(f"only_if must be a mapping of knobs and values, but got {show(given)}.")
        found = []
        for entry in given.entries:
            declaration = self._named(entry.name, place)
            if declaration is not None:
                found.append((declaration.path, check(declaration, entry.value)))
        return found
