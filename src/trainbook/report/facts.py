"""What the files of a run say, gathered once: the card and the report read these facts."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from trainbook.doctor import Diagnosis, diagnose
from trainbook.finding import Finding
from trainbook.report.run_row import GUARD_ACTIONS, last_saved_step, lost_metrics
from trainbook.runs import RunFolder, jsonl
from trainbook.runs.columns import are_numbers
from trainbook.runs.run_record import RunRecord, counted, read_run
from trainbook.runs.skipped import made_up_for
from trainbook.runs.table import TableRows

Row = dict[str, Any]


class RunFacts:
    def __init__(self, run: RunFolder, record: RunRecord | None = None) -> None:
        """`record` is the run's, where it was read before."""
        self.run = run
        self.manifest = run.read_manifest()
        self.record = record or read_run(run)
        self.train, self.evaluations = self.record.rows("train"), self.record.rows("eval")
        self.events = self.record.events
        self.unit = counted(self.record.facts)  # of `tokens`
        self.actions = [event for event in self.events if event["kind"] in GUARD_ACTIONS]
        self.skipped = self._num_skipped()
        self.rollbacks = [event for event in self.events if event["kind"] == "rollback"]
        self.resumes = sum(event["kind"] == "resume" for event in self.events)

    def _num_skipped(self) -> int:
        """While a run goes on, an event may come before the row that counts it, or the row before the event."""
        rejected = [event for event in self.events if event["kind"] == "skip"]
        counts = [event.get("total") for event in rejected] + [row.get("skipped_updates") for row in self.train[-1:]]
        return max([len(rejected), *(count for count in counts if type(count) is int)])

    @cached_property
    def status(self) -> str:
        """That of the manifest; `abandoned` where the process is gone, and `diverged` where a run that was made to its
        end has no finite training loss there."""
        if self.run.is_abandoned():
            return "abandoned"
        status = self.manifest.status
        return "diverged" if status == "finished" and self.lost_since is not None else status

    @cached_property
    def lost_since(self) -> int | None:
        """The first step from which on no training loss is finite; None where the newest one is."""
        since = None
        for steps, losses in self.train.blocks("step", "loss"):
            known = are_numbers(losses)
            steps, finite = steps[known], np.flatnonzero(np.isfinite(losses[known]))
            first = finite[-1] + 1 if len(finite) else 0  # of those after the last finite one
            if first < len(steps):
                since = int(steps[first]) if len(finite) or since is None else since
            elif len(steps):
                since = None
        return since

    @property
    def lost_text(self) -> str:
        """`the training loss has been NaN since step 60`."""
        loss = self.train[-1].get("loss")
        value = "infinite" if isinstance(loss, float) and math.isinf(loss) else "NaN"
        return f"the training loss has been {value} since step {self.lost_since:,}"

    @property
    def last_step(self) -> int:
        return max(self.train.last_step, last_saved_step(self.events))

    @property
    def made_up_for(self) -> int:
        """Rejected updates for which as many steps more than planned were made."""
        planned = self.record.facts.get("total_updates")
        if not self.train or type(planned) is not int or self.last_step <= planned:
            return 0
        return min(made_up_for(self.train[-1], self.record.origin), self.last_step - planned)

    @property
    def rolled_back_steps(self) -> int:
        """That rollbacks took back: no row of them counts."""
        pairs = [(event.get("noticed"), event["step"]) for event in self.rollbacks]
        return sum(max(0, noticed - step) for noticed, step in pairs if type(noticed) is int)

    @cached_property
    def rolled_back_evaluations(self) -> int:
        return len(self.run.metrics("eval", raw=True)) - len(self.evaluations) if self.rollbacks else 0

    @property
    def lost_metrics(self) -> str | None:
        return lost_metrics(self.run, self.manifest.status, self.events)

    @property
    def notices(self) -> list[str]:
        """What of the files is missing or could not be read."""
        return [*([self.lost_metrics] if self.lost_metrics else []), *self.record.notices]

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """None if the rules failed on this run; it is told without them."""
        try:
            return diagnose(self.record)
        except Exception:
            return None

    @property
    def spoken(self) -> list[Finding]:
        """The doctor's errors and warnings."""
        findings = [] if self.diagnosis is None else self.diagnosis.findings
        return [finding for finding in findings if finding.severity != "info"]

    @cached_property
    def seconds(self) -> float:
        """Time spent training: the steps' own, so that pauses between a stop and a resume don't count."""
        total, before = 0.0, 0.0
        for steps, seconds in self.train.blocks("step", "step_seconds"):
            if len(steps):
                spent = np.where(np.isfinite(seconds), seconds, 0.0) * np.diff(steps, prepend=before)
                total, before = float(np.cumsum([total, *spent])[-1]), float(steps[-1])
        return total

    @cached_property
    def evaluation_seconds(self) -> float:
        """Time spent in evaluations."""
        return sum(float(values[np.isfinite(values)].sum()) for (values,) in self.evaluations.blocks("seconds"))

    @property
    def tokens(self) -> int | float | None:
        """As the last row of training counts them."""
        value = self.train[-1].get("tokens") if self.train else None
        return value if isinstance(value, (int, float)) else None

    @cached_property
    def best(self) -> Row | None:
        """The evaluation that is best by the chosen metric, or by the loss; None if no loss is finite."""
        chosen = self.evaluations.with_true("best")
        if chosen:
            return chosen[-1]
        losses = np.concatenate([np.zeros(0), *(losses for (losses,) in self.evaluations.blocks("loss"))])
        is_known = np.isfinite(losses)
        return self.evaluations[int(np.argmin(np.where(is_known, losses, np.inf)))] if is_known.any() else None

    @property
    def ends(self) -> list[Row]:
        """Why it stopped early or failed; how an earlier part ended is history once it was resumed."""
        newest = self.events[-1].get("segment", 0) if self.events else 0
        kinds = ("early_stop", "failure")
        return [event for event in self.events if event.get("segment", 0) == newest and event["kind"] in kinds]

    @property
    def left_out(self) -> list[str]:
        """Samples that filters or an earlier run's quarantine excluded."""
        told = [event["left_out"] for event in self.events if event["kind"] == "start" and event.get("left_out")]
        return list(map(str, told[0])) if told and isinstance(told[0], list) else []

    @cached_property
    def quarantined(self) -> list[Row]:
        """Samples that this run has excluded itself."""
        return jsonl.read(self.run.quarantine_file)


def largest(rows: TableRows, name: str) -> float | None:
    found = [values[np.isfinite(values)] for (values,) in rows.blocks(name)]
    return max((float(values.max()) for values in found if len(values)), default=None)
