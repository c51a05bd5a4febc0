"""A resumed study has to ask the question it was begun with; it may only be given more budget and more seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainbook.errors import ResumeError
from trainbook.study.tune.budget import parse_budget


def is_extended(before: Mapping[str, Any], now: Mapping[str, Any], study: str) -> bool:
    """Whether it has more budget or more seeds than before. ResumeError: anything else has changed."""
    old, new = _flat(before), _flat(now)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    refused = [name for name in changed if not _is_more(name, old.get(name), new.get(name))]
    if not refused:
        return bool(changed)
    lines = [f"the study {study} was started with other settings:"]
    lines += [f"  {name}: {_shown(old.get(name))} -> {_shown(new.get(name))}" for name in refused]
    lines.append(
        "Use the old values, or start a new study under another --name. A study can be extended by a larger budget in "
        "the same unit, or by more seeds."
    )
    raise ResumeError("\n".join(lines))


def _is_more(name: str, old: Any, new: Any) -> bool:
    if name == "seeds":
        return new > old
    if name != "budget":
        return False
    before, now = parse_budget(old), parse_budget(new)
    return before.unit == now.unit and now.amount > before.amount


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
    return "not set" if value is None else str(value)
