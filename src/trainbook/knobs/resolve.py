"""From the names that a user wrote to the knobs that they mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trainbook.errors import Problem
from trainbook.knobs.aliases import (
    ELSEWHERE,
    NEEDS_SECTION,
    PLAIN_VALUE,
    SPECIAL,
    WRAPPERS,
    by_name,
    by_path,
    knob_in_section,
    nearest_knobs_hint,
    nearest_section,
    section_named,
    special_in_section,
)
from trainbook.knobs.config import Declaration, section_types
from trainbook.knobs.origin import Origin
from trainbook.knobs.text import YamlBlock, YamlEntry
from trainbook.knobs.values import BrokenLaw, check, show


@dataclass(frozen=True)
class Assignment:
    path: str
    value: Any
    origin: Origin
    # `fp16: false` only rules fp16 out: it gives way to `bf16: true`, and means fp32 where nothing else is said.
    rules_out: str | None = None


@dataclass(frozen=True)
class _Scope:
    section: str | None = None  # only this section's names are understood
    prefer: str | None = None  # inside a wrapper: whose `type` is meant
    prefix: str = ""


class Resolver:
    """Reads one layer (a file, a recipe, or the overrides) into assignments; collects every problem on the way."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin  # what all entries of the layer share
        self.assignments: list[Assignment] = []
        self.problems: list[Problem] = []
        self.notices: list[str] = []
        self.broken: set[str] = set()  # paths whose value was refused: laws over several knobs pass them over

    def read(self, block: YamlBlock) -> None:
        for entry in block.entries:
            self._entry(entry, _Scope())

    # Names

    def _entry(self, entry: YamlEntry, scope: _Scope) -> None:
        if "." in entry.name:
            head, rest = entry.name.split(".", 1)
            entry = YamlEntry(head, YamlBlock((YamlEntry(rest, entry.value, entry.line),)), entry.line)
        if scope.section:
            self._inside_section(entry, scope, scope.section)
        elif isinstance(entry.value, YamlBlock):
            self._global_block(entry, entry.value, scope)
        else:
            self._global_value(entry, scope)

    def _inside_section(self, entry: YamlEntry, scope: _Scope, section: str) -> None:
        declaration = knob_in_section(section, entry.name)
        if special_in_section(section, entry.name):
            self._special(entry, scope)
        elif declaration:
            self._assign(declaration, entry, scope)
        else:
            self._unknown(entry, scope)

    def _global_block(self, entry: YamlEntry, block: YamlBlock, scope: _Scope) -> None:
        inner = replace(scope, prefix=f"{scope.prefix}{entry.name}.")
        section = section_named(entry.name)
        if entry.name in SPECIAL:
            self._special(entry, scope)
        elif entry.name in WRAPPERS:
            self._entries(block, replace(inner, prefer=WRAPPERS[entry.name]))
        elif section:
            self._entries(block, replace(inner, section=section))
        elif len(owners := by_name().get(entry.name, ())) == 1:
            self._assign(owners[0], entry, scope)
        else:
            self._unknown(entry, scope)

    def _entries(self, block: YamlBlock, scope: _Scope) -> None:
        for entry in block.entries:
            self._entry(entry, scope)

    def _global_value(self, entry: YamlEntry, scope: _Scope) -> None:
        section = section_named(entry.name)
        owners = by_name().get(entry.name, ())
        preferred = [owner for owner in owners if owner.section == scope.prefer]
        if entry.name in SPECIAL:
            self._special(entry, scope)
        elif (
            section
            and section in PLAIN_VALUE
            and isinstance(entry.value, str | int)
            and not isinstance(entry.value, bool)
        ):
            self._assign(by_path()[f"{section}.{PLAIN_VALUE[section]}"], entry, scope)
        elif preferred:
            self._assign(preferred[0], entry, scope)
        elif len(owners) == 1 and entry.name not in NEEDS_SECTION:
            self._assign(owners[0], entry, scope)
        elif owners:
            paths = ", ".join(owner.path for owner in owners)
            self._problem(
                entry, scope, "needs its section.", f"Write {paths}." if len(owners) == 1 else f"Write one of {paths}."
            )
        elif entry.value is None and (section or entry.name in WRAPPERS):
            pass  # a section without entries
        elif section or entry.name in WRAPPERS:
            names = section_types()[section].model_fields if section else ()
            example = f", such as {next(iter(names))}" if names else ""
            self._problem(entry, scope, f"must be a mapping of knobs{example}, but got {show(entry.value)}.")
        else:
            self._unknown(entry, scope)

    def _unknown(self, entry: YamlEntry, scope: _Scope) -> None:
        if entry.name in ELSEWHERE and not scope.section:
            self._problem(entry, scope, "no such knob.", ELSEWHERE[entry.name])
            return
        owners = by_name().get(entry.name, ())
        meant = owners[0].path if len(owners) == 1 else next(iter(SPECIAL.get(entry.name, ())), None)
        is_section = meant is None and isinstance(entry.value, YamlBlock) and not scope.section
        if is_section:
            meant = nearest_section(entry.name)
            if meant is None:  # a mapping is no value of a knob, however alike their names
                sections = ", ".join(section_types())
                self._problem(entry, scope, "no such section.", f"The sections are {sections}.")
                return
        hint = f"Did you mean {meant}?" if meant else nearest_knobs_hint(entry.name, scope.section)
        self._problem(entry, scope, "no such section." if is_section and meant else "no such knob.", hint)

    # Values

    def _assign(self, declaration: Declaration, entry: YamlEntry, scope: _Scope) -> None:
        origin = self._origin(entry, scope)
        try:
            checked = check(declaration, _without_blocks(entry.value))
        except BrokenLaw as law:
            self.problems.append(Problem(origin.place, declaration.path, law.message, law.hint))
            self.broken.add(declaration.path)
            return
        self.assignments.append(Assignment(declaration.path, checked, origin))

    def _special(self, entry: YamlEntry, scope: _Scope) -> None:
        if entry.name in ("fp16", "bf16"):
            self._half_precision(entry, scope)
        else:
            self._betas(entry, scope)

    def _betas(self, entry: YamlEntry, scope: _Scope) -> None:
        pair = entry.value
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            shown = "a mapping" if isinstance(pair, YamlBlock) else show(pair)
            self._problem(entry, scope, f"must be a list of two numbers, [beta1, beta2], but got {shown}.")
            self.broken |= {"optimizer.beta1", "optimizer.beta2"}
            return
        for path, value in zip(("optimizer.beta1", "optimizer.beta2"), pair, strict=True):
            self._assign(by_path()[path], replace(entry, value=value), scope)

    def _half_precision(self, entry: YamlEntry, scope: _Scope) -> None:
        """`fp16: true`, `fp16: false`, or fp16 as a block of `enabled` and the settings of its loss scale."""
        if not isinstance(entry.value, YamlBlock):
            self._switch(entry, scope)
            return
        inner = _Scope(section="precision", prefix=f"{scope.prefix}{entry.name}.")
        enabled = next((item for item in entry.value.entries if item.name == "enabled"), None)
        if enabled is not None:
            self._switch(replace(enabled, name=entry.name), scope, written=f"{inner.prefix}enabled")
        elif self.origin.kind != "override":  # `fp16.loss_scale=128` changes one setting of a block in the file
            self.notices.append(
                f"{self._origin(entry, scope).place}  {scope.prefix}{entry.name}: has no `enabled`, "
                f"so precision.compute stays as it is."
            )
        if enabled is not None and enabled.value is False:
            return  # settings inside a block that is switched off
        for item in entry.value.entries:
            if item is not enabled:
                self._entry(item, inner)

    def _switch(self, entry: YamlEntry, scope: _Scope, written: str = "") -> None:
        written = written or f"{scope.prefix}{entry.name}"
        origin = replace(self._origin(entry, scope), written_as=written)
        if not isinstance(entry.value, bool):
            given = "a mapping" if isinstance(entry.value, YamlBlock) else show(entry.value)
            law = "true, false or a mapping with enabled" if written.endswith(entry.name) else "true or false"
            self.problems.append(Problem(origin.place, written, f"must be {law}, but got {given}."))
            self.broken.add("precision.compute")
        elif entry.value:
            self.assignments.append(Assignment("precision.compute", entry.name, origin))
        else:
            self.assignments.append(Assignment("precision.compute", "fp32", origin, rules_out=entry.name))

    def _origin(self, entry: YamlEntry, scope: _Scope) -> Origin:
        return replace(self.origin, line=entry.line, written_as=f"{scope.prefix}{entry.name}")

    def _problem(self, entry: YamlEntry, scope: _Scope, message: str, hint: str = "") -> None:
        origin = self._origin(entry, scope)
        self.problems.append(Problem(origin.place, origin.written_as, message, hint))


def _without_blocks(value: Any) -> Any:
    if isinstance(value, YamlBlock):
        return {entry.name: _without_blocks(entry.value) for entry in value.entries}
    return value
