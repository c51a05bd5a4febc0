"""What a check says: passed, failed or skipped, and by which numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trainbook.check.subject import CheckSubject

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckOutcome:
    status: Status
    evidence: str  # a sentence with numbers; of a skipped check, why it could not be asked
    cause: str = ""  # of a failure: what is most likely wrong
    advice: str = ""  # what to do about it
    override: str | None = None  # the same as key=value, where a knob can do it
    numbers: Mapping[str, Any] = field(default_factory=dict)  # what the sentence says, for programs


def passed(evidence: str, **numbers: Any) -> CheckOutcome:
    return CheckOutcome("passed", evidence, numbers=numbers)


def skipped(reason: str, **numbers: Any) -> CheckOutcome:
    return CheckOutcome("skipped", reason, numbers=numbers)


def failed(evidence: str, cause: str, advice: str, override: str | None = None, **numbers: Any) -> CheckOutcome:
    return CheckOutcome("failed", evidence, cause, advice, override, numbers)


@dataclass(frozen=True)
class Check:
    name: str
    proves: str  # what holds where it passes
    run: Callable[[CheckSubject], CheckOutcome]
    computes: bool = True  # with the model: senseless where the tokens do not fit it


@dataclass(frozen=True)
class CheckResult:
    check: Check
    outcome: CheckOutcome
    seconds: float

    def as_json(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "name": self.check.name,
            "proves": self.check.proves,
            "status": outcome.status,
            "evidence": outcome.evidence,
            "cause": outcome.cause or None,
            "advice": outcome.advice or None,
            "override": outcome.override,
            "numbers": dict(outcome.numbers),
            "seconds": round(self.seconds, 3),
        }
