"""What a check says: passed, a remark, failed or skipped, and by which numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainbook.finding import Finding

if TYPE_CHECKING:
    from trainbook.check.subject import CheckSubject

Status = Literal["passed", "remark", "failed", "skipped"]  # a remark is worth reading, and no reason to stop

NO_LABELS = "the task has no labels: its targets are tokens of the text"


@dataclass(frozen=True)
class CheckOutcome(Finding):
    """Of a skipped check, the evidence says why it could not be asked."""

    status: Status = "passed"


def passed(evidence: str, **numbers: Any) -> CheckOutcome:
    return CheckOutcome("", "info", evidence=evidence, numbers=numbers)


def skipped(reason: str, **numbers: Any) -> CheckOutcome:
    return CheckOutcome("", "info", evidence=reason, numbers=numbers, status="skipped")


def failed(evidence: str, cause: str, advice: str, override: str | None = None, **numbers: Any) -> CheckOutcome:
    return CheckOutcome(
        "", "error", cause, evidence=evidence, override=override, numbers=numbers, remedy=advice, status="failed"
    )


def remark(evidence: str, cause: str, advice: str, override: str | None = None, **numbers: Any) -> CheckOutcome:
    return CheckOutcome(
        "", "warning", cause, evidence=evidence, override=override, numbers=numbers, remedy=advice, status="remark"
    )


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
    follows_from: str | None = None  # of a failure: the name of another failed check that explains it

    def as_json(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "name": self.check.name,
            "proves": self.check.proves,
            "status": outcome.status,
            "evidence": outcome.evidence,
            "cause": outcome.cause or None,
            "advice": outcome.remedy or None,
            "override": outcome.override,
            "follows_from": self.follows_from,
            "numbers": dict(outcome.numbers),
            "seconds": round(self.seconds, 3),
        }
