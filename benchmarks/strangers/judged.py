"""A run with what the doctor says of it, opened as a stranger opens it: by the path of what his program wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from strangers.entries import Entry
from strangers.programs import watched
from strangers.programs.names import WATCHED, program_of

BAD = ("error", "warning")


@dataclass(frozen=True)
class Judged:
    kind: str
    program: str  # and what the doctor was given of it: one of RECORDS
    seed: int
    family: str
    is_healthy: bool
    is_twin: bool
    half: str  # of its kind; of a healthy run, of its family
    causes: tuple[str, ...]  # any of them is right; none: the run is healthy
    ended: str
    findings: tuple[dict[str, Any], ...] = ()  # as the doctor orders them
    refusal: str = ""  # what it said when it could not read the record
    is_counted: bool | None = True  # None: a fault whose twin has not been run, so that its harm is not known
    facts: dict[str, Any] = field(default_factory=dict)  # what is known of the run: scores, task, misleads

    def saying(self, findings: tuple[dict[str, Any], ...], refusal: str = "") -> Judged:
        return replace(self, findings=findings, refusal=refusal)

    @property
    def said(self) -> list[dict[str, Any]]:
        """What the doctor warns of, each cause once, in its order."""
        found: dict[str, dict[str, Any]] = {}
        for finding in self.findings:
            if finding["severity"] in BAD:
                found.setdefault(finding["cause"], finding)
        return list(found.values())

    @property
    def is_noticed(self) -> bool:
        return bool(self.said)

    def is_among(self, count: int) -> bool:
        return any(finding["cause"] in self.causes for finding in self.said[:count])

    @property
    def is_first(self) -> bool:
        return self.is_among(1)

    @property
    def is_among_three(self) -> bool:
        return self.is_among(3)

    @property
    def worst(self) -> str:
        severities = [finding["severity"] for finding in self.findings]
        return next((severity for severity in BAD if severity in severities), "")

    @property
    def cluster(self) -> str:
        """Runs of one kind, or of one family, are not independent of each other."""
        return f"{program_of(self.program)} {self.family}" if self.is_healthy else self.kind


def records_of(entry: Entry, truth: dict[str, Any], out: Path) -> dict[str, Path]:
    """What the doctor is given: what the program wrote, and, where it was watched, that run folder."""
    folder = entry.folder(out)
    found = {entry.program: folder / "run" / truth["record"]}
    if truth.get("watched"):
        found[WATCHED[entry.program]] = folder / watched.FOLDER / watched.NAME
    return found


def judge(entry: Entry, out: Path) -> list[Judged]:
    """By each of its records."""
    truth = entry.truth(out)
    found = []
    for name, record in records_of(entry, truth, out).items():
        said, refusal = findings_of(record)
        found.append(judged_by(entry, truth, out, name).saying(said, refusal))
    return found


def judged_by(entry: Entry, truth: dict[str, Any], out: Path, name: str) -> Judged:
    """By the record of this name, before the doctor has said anything."""
    from strangers.split import half_of_family, half_of_kind
    from strangers.validate import counts, learned

    facts = ("task", "style", "group", "misleads", "best", "last", "true", "baseline", "seconds")
    return Judged(
        entry.kind,
        name,
        entry.seed,
        truth["family"],
        entry.is_healthy,
        entry.is_twin,
        half_of_family(entry.program, truth["family"]) if entry.is_healthy else half_of_kind(entry.kind),
        tuple(truth["causes"]),
        truth["ended"],
        is_counted=learned(truth) if entry.is_healthy else counts(entry, truth, out),
        facts={fact: truth.get(fact) for fact in facts},
    )


def findings_of(record: Path) -> tuple[tuple[dict[str, Any], ...], str]:
    """Those of `trainbook doctor RECORD --json`; or the message of its refusal."""
    from trainbook.doctor.diagnose import diagnose, open_subject
    from trainbook.errors import TrainbookError

    try:
        return as_said(diagnose(open_subject(str(record), record.parent)).findings), ""
    except TrainbookError as error:
        return (), f"{type(error).__name__}: {error}"


def as_said(findings: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    from trainbook.doctor.causes import is_observed

    return tuple(
        {
            "rule": each.rule,
            "cause": each.cause,
            "severity": each.severity,
            "confidence": round(each.confidence, 4),
            "explained_by": each.explained_by,
            "is_observed": is_observed(each),
        }
        for each in findings
    )
