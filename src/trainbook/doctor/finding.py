"""A finding: a symptom with its evidence, the likely cause, and one change to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]  # act now; check this; worth knowing
ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Finding:
    rule: str
    severity: Severity
    cause: str  # a name in CAUSES
    confidence: float  # 0 to 1: that the cause is the right one, given the evidence
    evidence: str  # a sentence with steps and numbers
    steps: tuple[int, int] | None = None  # from, to
    override: str | None = None  # key=value, as `trainbook train` takes it
    numbers: Mapping[str, Any] = field(default_factory=dict)  # what the sentence says, for programs
    remedy: str | None = None  # in words, where it is not that of the cause
    also: tuple[str, ...] = ()  # the evidence of other rules that name the same cause
    is_by_exclusion: bool = False  # named because nothing else is known that could be: what is known then explains it
