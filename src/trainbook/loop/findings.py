"""The doctor at the bedside: the same rules on the rows so far, at each evaluation and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from trainbook.doctor import CAUSES, Finding, diagnose
from trainbook.knobs.config import Config, declarations
from trainbook.runs.record import Record
from trainbook.runs.schema import Split

SPOKEN = ("error", "warning")
MOST_ROWS = 2000  # that are kept of each split; beyond, every other one is let go, and from then on not kept
NEWEST = 20  # rows that are always there

Row = dict[str, Any]


class Log(Protocol):
    def __call__(self, kind: str, step: int | None = None, **fields: Any) -> None: ...


class Bedside:
    """Says each finding once: a rule and a cause that were told of are not told again, also not after a resume."""

    def __init__(
        self, name: str, config: Config, rows: Iterable[Row] = (), events: Iterable[Row] = (), *, world: int = 1
    ) -> None:
        self.name, self.config, self.world = name, config, world
        self._kept: dict[Split, list[tuple[int, Row]]] = {"train": [], "eval": []}  # each with its number
        self._every: dict[Split, int] = {"train": 1, "eval": 1}
        self.events: list[Row] = list(events)
        self.told = {(event.get("rule"), event.get("cause_id")) for event in self.events if event["kind"] == "finding"}
        self._settings = {knob.path: config.get(knob.path) for knob in declarations()}
        for row in rows:
            self.note(row["split"], row)

    def note(self, split: Split, row: Mapping[str, Any]) -> None:
        """Spread evenly over the run, however long it is, and the newest ones."""
        kept = self._kept[split]
        kept.append((kept[-1][0] + 1 if kept else 0, dict(row)))
        if len(kept) > NEWEST and kept[-NEWEST - 1][0] % self._every[split]:
            del kept[-NEWEST - 1]
        if len(kept) > MOST_ROWS:
            self._every[split] *= 2
            kept[:-NEWEST] = [each for each in kept[:-NEWEST] if each[0] % self._every[split] == 0]

    @property
    def rows(self) -> dict[Split, list[Row]]:
        return {split: [row for _, row in kept] for split, kept in self._kept.items()}

    def note_event(self, row: Mapping[str, Any]) -> None:
        self.events.append(dict(row))

    def go_back(self, step: int) -> None:
        """What came after it did not happen."""
        for split, kept in self._kept.items():
            self._kept[split] = [each for each in kept if each[1]["step"] <= step]

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
        facts: Row = {"determinism": {"world": self.world}} if self.world > 1 else {}
        for event in self.events:
            if event["kind"] in ("start", "facts"):
                facts |= {key: value for key, value in event.items() if key not in ("kind", "step", "segment", "time")}
        rows = self.rows
        return Record(self.name, rows["train"], rows["eval"], self.events, self._settings, self.config, facts)


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
