"""A whole configuration as YAML that loads again as the same one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import section_types
from trainbook.knobs.origin import TAKEN_OVER, Loaded, Origin
from trainbook.knobs.resume import KnobChange
from trainbook.knobs.values import show

PLAIN_WORD = re.compile(r"[A-Za-z./][A-Za-z0-9_./-]*")
READ_AS_SOMETHING_ELSE = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # by YAML 1.1 or 1.2


DERIVED = "derived: "


def dump(loaded: Loaded, keep: Mapping[str, str] | None = None) -> str:
    """Every knob by section; a value that is not the default's says where it comes from. `keep` has lines by path."""
    lines: list[str] = []
    for section, kind in section_types().items():
        lines += [f"{section}:"]
        for name in kind.model_fields:
            path = f"{section}.{name}"
            if keep is not None and path in keep:
                lines.append(keep[path])
                continue
            line = f"  {name}: {yaml_value(loaded.config.get(path))}"
            origin = origin_text(path, loaded.origins[path])
            lines.append(f"{line}  # {origin}" if origin else line)
        lines.append("")
    return "\n".join(lines)


def dump_changes(old: str, loaded: Loaded, changes: Sequence[KnobChange]) -> str:
    """As `dump`, but what did not change keeps its old line, which says where the value came from at first."""
    changed = {change.path for change in changes}
    return dump(loaded, {path: line for path, line in _true_lines(old, loaded).items() if path not in changed})


def untrue(old: str, loaded: Loaded, changes: Sequence[KnobChange]) -> list[str]:
    """The knobs of which a dumped text says something else, or nothing, though they did not change."""
    known = {*_true_lines(old, loaded), *(change.path for change in changes)}
    return [path for path in by_path() if path not in known]


def origins_in(text: str, loaded: Loaded) -> dict[str, str]:
    """Where the values of a dumped configuration came from; empty for a default. What was edited since is left out."""
    found = {path: line.partition("  # ")[2] for path, line in _true_lines(text, loaded).items()}
    return {
        path: origin for path, origin in found.items() if origin or loaded.get(path) == by_path()[path].field.default
    }


def _true_lines(text: str, loaded: Loaded) -> dict[str, str]:
    """By knob: the line that has its value."""
    lines, section = {}, ""
    for line in text.splitlines():
        if found := re.fullmatch(r"(\w+):", line):
            section = found[1]
        elif (found := re.match(r"  (\w+): ", line)) and (path := f"{section}.{found[1]}") in by_path():
            true = f"  {found[1]}: {yaml_value(loaded.config.get(path))}"
            if line == true or line.startswith(f"{true}  # "):
                lines[path] = line
    return lines


def origin_text(path: str, origin: Origin) -> str:
    """The place, and the name that was used there if it is another one; empty for a default."""
    if origin.kind == "default":
        return ""
    if origin.kind == "derived":
        return DERIVED + origin.where
    foreign = origin.written_as not in ("", path, by_path()[path].name)
    told = f"{origin.place}, as {origin.written_as}" if foreign else origin.place
    return told + TAKEN_OVER if origin.is_taken_over else told


def yaml_value(value: Any) -> str:
    if isinstance(value, str):
        is_plain = PLAIN_WORD.fullmatch(value) and value.lower() not in READ_AS_SOMETHING_ELSE
        return value if is_plain else '"' + _escaped(value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(yaml_value(item) for item in value) + "]"
    return show(value)


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in text)
