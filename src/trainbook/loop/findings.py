"""The doctor at the bedside: the same rules on the rows so far, at each evaluation and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from trainbook.doctor import CAUSES, Finding, diagnose
from trainbook.knobs.config import Config, declarations
from trainbook.runs.record import Record
from trainbook.runs.schema import Split

SPOKEN = ("error", "warning")
MOST_ROWS = 2000  # that are kept of each split; beyond, every other one is let go

Row = dict[str, Any]


class Log(Protocol):
    def __call__(self, kind: str, step: int | None = None, **fields: Any) -> None: ...


class Bedside:
    """Says each finding once: a rule and a cause that were told of are not told again, also not after a resume."""

    def __init__(self, name: str, config: Config, rows: Iterable[Row] = (), events: Iterable[Row] = ()) -> None:
        self.name, self.config = name, config
        self.rows: dict[Split, list[Row]] = {"train": [], "eval": []}
        self.events: list[Row] = list(events)
        self.told = {(event.get("rule"), event.get("cause_id")) for event in self.events if event["kind"] == "finding"}
        self._settings = {knob.path: config.get(knob.path) for knob in declarations()}
        for row in rows:
            self.note(row["split"], row)

    def note(self, split: Split, row: Mapping[str, Any]) -> None:
        rows = self.rows[split]
        rows.append(dict(row))
        if len(rows) > MOST_ROWS:
            self.rows[split] = rows[:20] + rows[20:-20:2] + rows[-20:]

    def note_event(self, row: Mapping[str, Any]) -> None:
        self.events.append(dict(row))

    def go_back(self, step: int) -> None:
        """What came after it did not happen."""
        for split, rows in self.rows.items():
            self.rows[split] = [row for row in rows if row["step"] <= step]

    def speak(self, step: int, log: Log) -> None:
        """Write what is new. Whatever goes wrong here, the run goes on."""
        try:
            found = diagnose(self._record()).findings
        except Exception as error:
            if not any(key == ("doctor", None) for key in self.told):
                self.told.add(("doctor", None))
                log("notice", step, reason=f"the doctor could not look at the run: {type(error).__name__}: {error}")
            return
        for each in found:
            if each.severity in SPOKEN and (each.rule, each.cause) not in self.told:
                self.told.add((each.rule, each.cause))
                log("finding", step, **as_event(each))

    def _record(self) -> Record:
        facts: Row = {}
        for event in self.events:
            if event["kind"] in ("start", "facts"):
                facts |= {key: value for key, value in event.items() if key not in ("kind", "step", "segment", "time")}
        return Record(self.name, self.rows["train"], self.rows["eval"], self.events, self._settings, self.config, facts)


def as_event(finding: Finding) -> dict[str, Any]:
    """With a `reason` that says it in a line."""
    cause = CAUSES[finding.cause]
    try_it = f" Try {finding.override}." if finding.override else ""
    return {
        "reason": f"{finding.severity}: {cause.sentence} {_sentence(finding.evidence)}{try_it}",
        "rule": finding.rule,
        "severity": finding.severity,
        "steps": list(finding.steps) if finding.steps is not None else None,
        "evidence": finding.evidence,
        "cause": cause.sentence,
        "cause_id": finding.cause,
        "override": finding.override,
        "confidence": round(finding.confidence, 3),
    }


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
