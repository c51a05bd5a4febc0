"""The doctor during a run: the same rules on the rows so far, at each evaluation and at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from trainbook.doctor import CAUSES, Finding, diagnose
from trainbook.finding import ORDER, Severity
from trainbook.knobs.config import Config
from trainbook.runs.foreign.vocabulary import where_to_set
from trainbook.runs.run_record import RunRecord, told_by
from trainbook.runs.schema import Split

SPOKEN = ("error", "warning")
AT_ONCE = ("not-finite", "guard-acted", "out-of-memory", "silent-corruption")  # rules that count what has happened
MOST_ROWS = 2000  # that are kept of each split; beyond, every other one is let go, and from then on not kept
NEWEST = 20  # rows that are always there

Row = dict[str, Any]


class FindingLog(Protocol):
    def __call__(self, kind: str, step: int | None = None, **fields: Any) -> None: ...


class Told(NamedTuple):
    severity: Severity
    step: int | None
    looks_without: int = 0  # in a row, since it was last seen


class LiveDoctor:
    """Reports each cause once, and again only if it has become more severe; also after a resume. What follows from a
    likelier cause is left to the card: during the run the first advice is enough.

    A part of a curve may look like anything: a cause is reported when two looks in a row have found it, and withdrawn
    when two in a row have not. The last look agrees with the card, so it needs no second one."""

    def __init__(
        self,
        name: str,
        config: Config,
        rows: Iterable[Row] = (),
        events: Iterable[Row] = (),
        *,
        world: int = 1,
        recipe: str | None = None,
        injected_faults: Iterable[str] = (),
    ) -> None:
        self.name, self.world, self.recipe = name, world, recipe
        self.injected_faults = list(injected_faults)
        self.told_by_config = told_by(config, recipe)
        self._kept: dict[Split, list[tuple[int, Row]]] = {"train": [], "eval": []}  # each with its number
        self._every: dict[Split, int] = {"train": 1, "eval": 1}
        self.events: list[Row] = list(events)
        self.told: dict[str, Told] = {}  # by cause
        self._suspected: dict[str, Severity] = {}  # cause and severity, of the look before
        self._has_failed = False
        for event in self.events:
            if event["kind"] == "finding" and "cause_id" in event:
                self.told[event["cause_id"]] = Told(event["severity"], event.get("step"))
            elif event["kind"] == "withdrawn":
                self.told.pop(event["cause_id"], None)
        for row in rows:
            self.note(row["split"], row)

    def note(self, split: Split, row: Mapping[str, Any]) -> None:
        """Keep the newest rows, and of the older ones an even selection over the run."""
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
        """Forget the rows after a step that the run rolled back to."""
        for split, kept in self._kept.items():
            self._kept[split] = [each for each in kept if each[1]["step"] <= step]
        self._suspected = {}

    def report_new(self, step: int, log: FindingLog) -> None:
        """Log what is new, and what no longer holds. An error here does not stop the run."""
        try:
            record = self._record()
            found = diagnose(record).findings
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                log("notice", step, reason=f"the doctor failed on this run: {type(error).__name__}: {error}")
            return
        skipped = record.train[-1].get("skipped_updates") or 0 if len(record.train) else 0  # and made up for
        is_last = step - skipped >= (record.facts.get("total_updates") or math.inf)
        spoken = {each.cause: each for each in found if each.severity in SPOKEN and not each.explained_by}
        for cause, each in spoken.items():
            is_sure = is_last or each.rule in AT_ONCE
            severity = each.severity if is_sure else _milder(each.severity, self._suspected.get(cause))
            told = self.told.get(cause)
            if severity is not None and (told is None or ORDER[severity] < ORDER[told.severity]):
                self.told[cause] = Told(severity, step)
                log("finding", step, **as_event(record, replace(each, severity=severity)))
        self._suspected = {cause: each.severity for cause, each in spoken.items()}
        self._withdraw(
            step, {each.cause for each in found if each.severity in SPOKEN or each.explained_by}, log, is_last
        )

    def _withdraw(self, step: int, holding: set[str], log: FindingLog, is_last: bool) -> None:
        for cause, told in list(self.told.items()):
            without = 0 if cause in holding else told.looks_without + 1
            self.told[cause] = told._replace(looks_without=without)
            if without >= 2 or (without and is_last):
                del self.told[cause]
                since = "" if told.step is None else f" at step {told.step:,}"
                reason = f"{CAUSES[cause].sentence} This {told.severity}{since} no longer holds."
                log("withdrawn", step, reason=reason, cause_id=cause, severity=told.severity)

    def _record(self) -> RunRecord:
        facts: Row = {"recipe": self.recipe, "determinism": {"world": self.world}}
        facts["injected_faults"] = self.injected_faults
        for event in self.events:
            if event["kind"] in ("start", "facts"):
                facts |= {key: value for key, value in event.items() if key not in ("kind", "step", "segment", "time")}
        rows, (origin, settings, config) = self.rows, self.told_by_config
        return RunRecord(self.name, rows["train"], rows["eval"], self.events, settings, config, facts, origin)


def _milder(now: Severity, before: Severity | None) -> Severity | None:
    """Of two looks in a row; None if only one of them found it."""
    return None if before is None else max(now, before, key=lambda severity: ORDER[severity])


def as_event(record: RunRecord, finding: Finding) -> dict[str, Any]:
    """The fields of a `finding` event; `reason` is the finding in one line."""
    cause = CAUSES[finding.cause]
    try_it = f" Try {where_to_set(record, finding.override)}." if finding.override else ""
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
