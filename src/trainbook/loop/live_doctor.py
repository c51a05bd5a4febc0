"""The doctor during a run: the same rules on the rows so far, at each evaluation and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from trainbook.doctor import CAUSES, Finding, diagnose
from trainbook.knobs.config import Config
from trainbook.runs.foreign.vocabulary import where_to_set
from trainbook.runs.run_record import RunRecord, told_by
from trainbook.runs.schema import Split

SPOKEN = ("error", "warning")
MOST_ROWS = 2000  # that are kept of each split; beyond, every other one is let go, and from then on not kept
NEWEST = 20  # rows that are always there

Row = dict[str, Any]


class FindingLog(Protocol):
    def __call__(self, kind: str, step: int | None = None, **fields: Any) -> None: ...


class LiveDoctor:
    """Reports each cause once, and again only if it has become more severe; also after a resume. What follows from a
    likelier cause is left to the card: during the run the first advice is enough."""

    def __init__(
        self,
        name: str,
        config: Config,
        rows: Iterable[Row] = (),
        events: Iterable[Row] = (),
        *,
        world: int = 1,
        recipe: str | None = None,
    ) -> None:
        self.name, self.world, self.recipe = name, world, recipe
        self.told_by_config = told_by(config, recipe)
        self._kept: dict[Split, list[tuple[int, Row]]] = {"train": [], "eval": []}  # each with its number
        self._every: dict[Split, int] = {"train": 1, "eval": 1}
        self.events: list[Row] = list(events)
        self.told: set[tuple[str | None, str | None]] = set()  # cause, severity
        for event in self.events:
            if event["kind"] == "finding":
                self._note_told(event.get("cause_id"), event.get("severity"))
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

    def report_new(self, step: int, log: FindingLog) -> None:
        """Log new findings. An error here does not stop the run."""
        try:
            record = self._record()
            found = diagnose(record).findings
        except Exception as error:
            if not any(key == ("doctor", None) for key in self.told):
                self.told.add(("doctor", None))
                log("notice", step, reason=f"the doctor failed on this run: {type(error).__name__}: {error}")
            return
        for each in found:
            if each.severity in SPOKEN and not each.explained_by and (each.cause, each.severity) not in self.told:
                self._note_told(each.cause, each.severity)
                log("finding", step, **as_event(record, each))

    def _note_told(self, cause: str | None, severity: str | None) -> None:
        """What was told as an error is not told as a warning later."""
        self.told |= {(cause, severity), (cause, "warning")}

    def _record(self) -> RunRecord:
        facts: Row = {"recipe": self.recipe, "determinism": {"world": self.world}}
        for event in self.events:
            if event["kind"] in ("start", "facts"):
                facts |= {key: value for key, value in event.items() if key not in ("kind", "step", "segment", "time")}
        rows, (origin, settings, config) = self.rows, self.told_by_config
        return RunRecord(self.name, rows["train"], rows["eval"], self.events, settings, config, facts, origin)


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
