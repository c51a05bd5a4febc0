"""The board: sources, index, opened runs and verdicts, and how one leads to another."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from trainbook.board.answers import Refused
from trainbook.board.data_view import DataReports
from trainbook.board.finding_runs import Place, Stamp
from trainbook.board.findings import Verdict, Verdicts, Worker
from trainbook.board.index import Index, Summary, read_row
from trainbook.board.judging import Judging
from trainbook.board.light_runs import LightRuns
from trainbook.board.records import OpenRun, Records
from trainbook.board.study_view import study_summary
from trainbook.board.uploads import Uploads


class Board:
    def __init__(
        self,
        sources: Sequence[Path],
        *,
        allows_actions: bool = False,
        is_demo: bool = False,
        worker: Worker | None = None,
        remembers: bool = False,
    ) -> None:
        self.allows_actions, self.is_demo = allows_actions, is_demo
        self.worker = worker or Worker()
        self.index = Index(sources, self._read_later, remembers=remembers)
        self.records = Records()
        self.lights = LightRuns(self.records, self.worker)
        self.verdicts = Verdicts(self.worker, self._tell)
        self.judging = Judging(self.index, self.verdicts)
        self.uploads = Uploads(self.index)
        self.data = DataReports()
        self.tries: list[subprocess.Popen[bytes]] = []  # remedies that somebody has asked to be tried
        self._studies: dict[str, tuple[object, Summary]] = {}
        self._waiting: dict[str, Place] = {}  # runs that are to be read as a whole
        self._is_reading = self._is_closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        self._is_closed = True
        self.judging.close()
        self.verdicts.close()
        self.index.remember()
        self.worker.close()
        self.uploads.close()

    def run(self, id: str) -> OpenRun:
        """Refused: there is none of this id, or it cannot be read."""
        return self.records.open(self.place(id, "run"))

    def place(self, id: str, what: str) -> Place:
        place = self.index.place(id)
        if place is None:
            self.index.look()
            place = self.index.place(id)
        if place is None or (place.kind == "study") != (what == "study"):
            raise Refused(404, f"the folder of this {what} is gone, or it was never on this board.")
        return place

    def summary(self, id: str) -> Summary:
        found = self.index.summary(id)
        if found is None:
            raise Refused(404, "the folder of this run is gone, or it was never on this board.")
        return found

    def studies(self) -> list[Summary]:
        by_study: dict[str | None, list[Summary]] = {}
        for run in self.index.summaries():
            by_study.setdefault(run["study"], []).append(run)
        return [self.study(place, stamp, by_study.get(place.id, [])) for place, stamp in self.index.studies()]

    def study(self, place: Place, stamp: Stamp, runs: Sequence[Summary]) -> Summary:
        """The answer of one that is complete is read again only if it, or one of its runs, has changed."""
        seen = stamp, len(runs), max((self.index.version(run["id"]) for run in runs), default=0)
        known = self._studies.get(place.id)
        if known is None or known[0] != seen or known[1]["status"] != "complete":
            source = self.index.sources[place.source].name
            known = self._studies[place.id] = seen, study_summary(place, source, runs)
        return known[1]

    def ask_doctor(self, id: str) -> None:
        """Without waiting for the answer."""
        place = self.place(id, "run")
        self.verdicts.of(place, place.stamp())

    def verdict(self, run: OpenRun, wait: float = 0.0) -> tuple[Verdict | None, bool]:
        return self.verdicts.of(run.place, run.stamp, wait)

    def _tell(self, id: str, verdict: Verdict) -> None:
        counts = verdict.counts if verdict.diagnosis is not None else None
        self.index.note_verdict(id, counts, verdict.stamp, verdict.problem)

    def _read_later(self, place: Place) -> None:
        """One after the other, so that what somebody waits for comes between."""
        with self._lock:
            self._waiting[place.id] = place
            if self._is_reading:
                return
            self._is_reading = True
        self._read_next()

    def _read_next(self) -> None:
        with self._lock:
            place = None if self._is_closed or not self._waiting else self._waiting.popitem()[1]
            self._is_reading = place is not None
        if place is None:
            return self.index.remember()
        try:
            reading = self.worker.submit(read_row, str(place.path))
        except Exception:  # the next run that grows begins anew
            self._is_reading = False
            raise
        reading.add_done_callback(lambda done: self._install(place.id, done))

    def _install(self, id: str, done: Future[Any]) -> None:
        try:
            if not done.cancelled() and done.exception() is None and done.result() is not None:
                self.index.install(id, done.result())
        finally:
            self._read_next()
