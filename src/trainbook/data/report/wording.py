"""How findings are made and worded."""

from __future__ import annotations

from typing import Any

Facts = dict[str, Any]

MANY_COPIES = 0.01  # of the documents of a side


def finding(rule: str, severity: str, text: str, override: str | None = None) -> Facts:
    return {"rule": rule, "severity": severity, "text": text, "override": override}


def counted(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def has(count: int) -> str:
    return "has" if count == 1 else "have"


def listed(names: list[str], most: int = 5) -> str:
    shown = ", ".join(f"'{name if len(name) <= 30 else name[:29] + '…'}'" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
