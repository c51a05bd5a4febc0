"""A study that goes on has to be the one that was begun: its trials would answer another question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainbook.errors import ResumeError


def must_be_the_same(before: Mapping[str, Any], now: Mapping[str, Any], study: str) -> None:
    old, new = _flat(before), _flat(now)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if not changed:
        return
    lines = [f"the study {study} was begun with another question:"]
    lines += [f"  {name}: {_shown(old.get(name))} -> {_shown(new.get(name))}" for name in changed]
    lines.append("Use the old values, or begin a new study under another --name.")
    raise ResumeError("\n".join(lines))


def _flat(question: Mapping[str, Any]) -> dict[str, Any]:
    """By knob: its value in the base, or its role and range."""
    found: dict[str, Any] = {}
    for name, value in question.items():
        if name == "configuration":
            found |= value
        elif name in ("scientific", "nuisance") and value is not None:
            found |= {f"{name} {each['path']}": {k: v for k, v in each.items() if k != "path"} for each in value}
        else:
            found[name] = value
    return found


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = [f"{name} {part}" for name, part in value.items() if part not in (None, [], ()) and part is not False]
        return ", ".join(parts)
    return "not there" if value is None else str(value)
