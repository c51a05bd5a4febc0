"""The index of all runs and studies: at each look, only what has changed is read again."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainbook.board.answers import text_of
from trainbook.board.best_runs import best_runs
from trainbook.board.finding_runs import OWN_FILES, Place, Places, Stamp, holds_one_run, judged_stamp
from trainbook.board.remembered import Rows, recall, remember
from trainbook.board.tries import Arm, arm_of, as_planned
from trainbook.bounded.files import open_bytes
from trainbook.contained import link_must_stay_inside
from trainbook.errors import LeadsOut, TrainbookError
from trainbook.report.run_row import RunRow, record_row
from trainbook.report.seed_groups import group_names, repeats_of
from trainbook.runs import RunFolder
from trainbook.runs.digest import LossBuckets
from trainbook.runs.foreign import read_foreign
from trainbook.runs.run_record import RunRecord

METRICS = OWN_FILES.index("metrics.jsonl")
FRESH = 0.2  # seconds in which a look is not repeated
OF_THE_TIME = 0.02  # that is spent on looking at all runs; those that go on are looked at each time
LONGEST_REST = 10.0  # seconds between two looks at all runs
ACTIVE = 60.0  # seconds since a run was last seen to change, in which it is taken to go on
NOT_LINKS = (*OWN_FILES, "config.yaml", "lock")
LONG = 1 << 18  # bytes of metrics: a longer file is first read from its end, and as a whole in the background
TAIL_BYTES = 1 << 14
MOST_CHANGES = 10_000
LONGEST = 300  # letters of a name
JUDGED_AGAIN = 60.0  # seconds until a run that goes on is given to the doctor again, where nobody looks at it
OF_OTHERS = ("repeat_of", "group_name", "best_of")  # what a summary says of its run among all runs
BROKEN = (TrainbookError, OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError)

Summary = dict[str, Any]


@dataclass(frozen=True)
class Changes:
    changed: list[str]
    removed: list[str]
    stamp: int


@dataclass
class Source:
    name: str
    path: Path
    places: Places = field(repr=False)


@dataclass
class _Entry:
    place: Place
    stamp: Stamp = ()
    arm: Arm | None = None  # what it is in the try of a remedy
    row: RunRow | None = None  # of a run that goes on: read on from where it was
    summary: Summary = field(default_factory=dict)
    version: int = 0
    found: dict[str, int] | None = None  # what the doctor found when it looked last
    recorded: dict[str, int] | None = None  # what the run itself has recorded of its doctor
    changed_at: float = -ACTIVE  # when its files were last seen to change, after the first look
    judged: Stamp | None = None  # what of it was given to the doctor last
    judged_at: float = -JUDGED_AGAIN


class Index:
    """`read_later` is asked for what takes long to read; `install` takes the result. `remembers`: from one start to the
    next."""

    def __init__(
        self,
        sources: Sequence[Path],
        read_later: Callable[[Place], None] | None = None,
        *,
        remembers: bool = False,
    ) -> None:
        self.sources = [Source(name, path, Places(path, number)) for number, (name, path) in enumerate(_named(sources))]
        self._read_later = read_later
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._studies: dict[str, tuple[Place, Stamp]] = {}
        self._removed: list[tuple[int, str]] = []
        self._versions = itertools.count(time.time_ns() // 1_000_000)  # above those of a server before this one
        self._version = 0
        self._marked = -1  # the version in which groups were looked for
        self._looked: float | None = None
        self._all_due = self._cost = 0.0
        self._remembers = remembers
        self._remembered: Rows = {}
        if remembers:
            for number, source in enumerate(self.sources):
                found = recall(source.path.resolve())
                self._remembered |= {f"{number}{id}": known for id, known in found.items()}

    def add_source(self, name: str, path: Path) -> None:
        with self._lock:
            self.sources.append(Source(name, path, Places(path, len(self.sources))))
            self._looked = None

    def look(self) -> int:
        """Reads what is new; gives a number that rises with each change."""
        with self._lock:
            now = time.monotonic()
            if self._looked is None or now >= self._all_due:
                before = self._version
                self._look()
                if self._version == before:  # what reading takes is no measure of looking
                    self._cost = time.monotonic() - now
                self._all_due = time.monotonic() + min(LONGEST_REST, max(FRESH, self._cost / OF_THE_TIME))
            elif now - self._looked >= FRESH:
                for id, entry in list(self._entries.items()):
                    if entry.summary["status"] == "running" or now - entry.changed_at < ACTIVE:
                        self._look_at(id, entry.place)
            else:
                return self._version
            self._mark_groups()
            self._looked = time.monotonic()
            return self._version

    def is_fresh(self, seconds: float) -> bool:
        """Whether somebody has looked so short a time ago."""
        return self._looked is not None and time.monotonic() - self._looked < seconds

    @property
    def newest(self) -> int:
        return self._version

    def look_again(self) -> int:
        """At once, after something was changed."""
        with self._lock:
            self._looked = None
            return self.look()

    def since(self, version: int) -> Changes:
        with self._lock:
            changed = [id for id, entry in self._entries.items() if entry.version > version]
            removed = [id for at, id in self._removed if at > version and id not in self._entries]
            return Changes(changed, removed, self._version)

    def summaries(self) -> list[Summary]:
        with self._lock:
            return [entry.summary for entry in self._entries.values()]

    def summary(self, id: str) -> Summary | None:
        with self._lock:
            entry = self._entries.get(id)
            return None if entry is None else entry.summary

    def place(self, id: str) -> Place | None:
        """The only way from an id to a path."""
        with self._lock:
            if id in self._entries:
                return self._entries[id].place
            return self._studies[id][0] if id in self._studies else None

    def version(self, id: str) -> int:
        with self._lock:
            return self._entries[id].version if id in self._entries else 0

    def studies(self) -> list[tuple[Place, Stamp]]:
        with self._lock:
            return list(self._studies.values())

    def of_study(self, id: str) -> list[Summary]:
        with self._lock:
            return [entry.summary for entry in self._entries.values() if entry.place.study == id]

    def install(self, id: str, row: RunRow) -> None:
        """What was read elsewhere."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is not None:
                entry.row = row
                self._show(entry)
                self._mark_groups()

    def note_verdict(self, id: str, found: dict[str, int] | None, judged: Stamp, problem: str = "") -> None:
        """A new version also where the counts are those of before: a page may wait for the verdict. None: it failed."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:
                return
            entry.judged, entry.judged_at = judged, time.monotonic()
            if found is not None and (any(found.values()) or not entry.summary.get("is_lost")):
                entry.found = found
                entry.summary = {**entry.summary, "findings": found, "is_judged": True}
            entry.summary = {**entry.summary, "verdict_problem": text_of(problem, 1_000)}
            self._note(entry)

    def is_training(self) -> bool:
        """Whether a run of the list goes on, as far as was seen."""
        with self._lock:
            return any(entry.summary.get("status") == "running" for entry in self._entries.values())

    def next_to_judge(self) -> Place | None:
        """The run that waits longest for a verdict: one that has none, no trial, the newest. It is asked for once."""
        with self._lock:
            waiting = [entry for entry in self._entries.values() if self._waits(entry)]
            if not waiting:
                return None
            entry = max(waiting, key=_urgency)
            entry.judged, entry.judged_at = judged_stamp(entry.place, entry.stamp), time.monotonic()
            return entry.place

    def _waits(self, entry: _Entry) -> bool:
        summary = entry.summary
        if not entry.stamp or summary["problem"] is not None or summary.get("is_lost"):
            return False
        is_early = summary["status"] == "running" and time.monotonic() - entry.judged_at < JUDGED_AGAIN
        return not is_early and entry.judged != judged_stamp(entry.place, entry.stamp)

    def remember(self) -> None:
        """Of runs that have ended, what was read of them. The number of their source is not part of it."""
        if not self._remembers:
            return
        rows: dict[int, Rows] = {}
        with self._lock:
            for id, entry in self._entries.items():
                is_over = entry.summary["status"] != "running"
                if is_over and entry.summary["problem"] is None and entry.summary.get("spark") is not None:
                    number = entry.place.source
                    rows.setdefault(number, {})[id.removeprefix(str(number))] = entry.stamp, entry.summary
            paths = {number: self.sources[number].path.resolve() for number in rows}
        for number, found in rows.items():
            remember(paths[number], found)

    def _look(self) -> None:
        found: dict[str, Place] = {}
        for source in self.sources:
            found |= source.places.look()
        for gone in (self._entries.keys() | self._studies.keys()) - found.keys():
            self._entries.pop(gone, None)
            self._studies.pop(gone, None)
            self._version = next(self._versions)
            self._removed = [*self._removed[-MOST_CHANGES:], (self._version, gone)]
        for id, place in found.items():
            self._look_at(id, place)

    def _mark_groups(self) -> None:
        """`repeat_of`: the run that counts in place of one with the same settings and seed. `group_name`: where there
        are two seeds or more. `best_of`: of how many runs this one is the best."""
        if self._marked == self._version:
            return
        rows = sorted(
            (each.summary for each in self._entries.values()), key=lambda row: (row["started"] or "", row["id"])
        )
        repeats = repeats_of(rows)
        names, best = group_names(rows, repeats), best_runs(rows)
        for id, entry in self._entries.items():
            group_name = names.get(entry.summary.get("group") or "")
            told = {"repeat_of": repeats.get(id), "group_name": group_name, "best_of": best.get(id)}
            if any(entry.summary.get(name) != value for name, value in told.items()):
                entry.summary = {**entry.summary, **told}
                self._note(entry)
        self._marked = self._version

    def _look_at(self, id: str, place: Place) -> None:
        stamp, arm = place.stamp(), arm_of(place)
        if place.kind == "study":
            if self._studies.get(id) != (place, stamp):
                self._studies[id] = place, stamp
                self._version = next(self._versions)
            return
        entry = self._entries.get(id)
        if entry is None or entry.place.kind != place.kind:
            entry = self._entries[id] = _Entry(place)
        elif entry.stamp == stamp and entry.arm == arm:
            if entry.row is not None and entry.summary["status"] == "running":
                self._show_if_ended(entry)
            return
        entry.place, entry.arm, before, entry.stamp = place, arm, entry.stamp, stamp
        if before:
            entry.changed_at = time.monotonic()
        known = self._remembered.pop(id, None)
        if known is not None:
            _recall_verdict(entry, *known)
        if known is not None and known[0] == stamp:
            self._set(entry, known[1])
        elif place.kind == "foreign":
            self._read_foreign(entry)
        elif (leads_out := _leads_out(place)) is not None:
            entry.row = None
            self._set_damaged(entry, leads_out)
        elif entry.row is None and _is_long(stamp) and self._read_later is not None:
            self._read_end(entry, before)
        else:
            entry.row = entry.row or RunRow(RunFolder(place.path), with_spark=True)
            self._show(entry)

    def _show_if_ended(self, entry: _Entry) -> None:
        if RunFolder(entry.place.path).is_abandoned():
            self._show(entry)

    def _show(self, entry: _Entry) -> None:
        """From its files, as far as they were not read before."""
        assert entry.row is not None
        try:
            self._set(entry, entry.row.row())
        except BROKEN as error:
            entry.row = None
            self._set_damaged(entry, error)
            return
        if entry.summary["status"] != "running" and time.monotonic() - entry.changed_at > ACTIVE:
            entry.row = None  # of thousands of runs, what is shown is enough

    def _read_end(self, entry: _Entry, before: Stamp) -> None:
        """The newest rows for now, and the rest in the background."""
        row = RunRow(RunFolder(entry.place.path), with_spark=True)
        begin_at_end(row)
        try:
            known = {name: entry.summary.get(name) for name in ("metric", "spark", "spark_steps")}
            shown = row.row() | known | {"metric_note": entry.summary.get("metric_note", "")}
        except BROKEN as error:
            return self._set_damaged(entry, error)
        self._set(entry, shown)
        if self._read_later is not None and (not before or before[METRICS] != entry.stamp[METRICS]):
            self._read_later(entry.place)

    def _read_foreign(self, entry: _Entry) -> None:
        try:
            record = read_foreign(entry.place.path)
            if record is None:
                raise ValueError("it is no log that can be read")
            self._set(entry, record_row(record) | _spark(record))
        except BROKEN as error:
            self._set_damaged(entry, error)

    def _set(self, entry: _Entry, row: Summary) -> None:
        place = entry.place
        is_judged_as_it_is = entry.judged is not None and entry.judged == judged_stamp(place, entry.stamp)
        if row.get("findings") != entry.recorded and not is_judged_as_it_is:  # newer than the verdict
            entry.found = None
        entry.recorded = row.get("findings")
        found = entry.recorded if entry.found is None else entry.found
        entry.summary = {
            **row,
            "id": place.id,
            "kind": place.kind,
            "name": text_of(row["name"], LONGEST),
            "remedy_of": None,
            **({} if entry.arm is None else as_planned(entry.arm, row)),
            "path": text_of(place.path),
            "source": self.sources[place.source].name,
            "study": place.study,
            "findings": found,
            "is_judged": row.get("is_judged", False) or entry.found is not None,
            "verdict_problem": entry.summary.get("verdict_problem", "") if is_judged_as_it_is else "",
            "problem": None,
            **{name: entry.summary.get(name) for name in OF_OTHERS},
        }
        self._note(entry)

    def _set_damaged(self, entry: _Entry, error: Exception) -> None:
        empty = dict.fromkeys(("step", "metric", "loss", "spark", "findings", "group", "started", "updated"))
        row = {**empty, "name": entry.place.path.name, "status": "damaged", "tags": [], "note": "", "archived": False}
        self._set(entry, {**row, "settings": {}, "metrics": {}, "faults": [], "metric_note": "", "notices": []})
        entry.summary["problem"] = text_of(error, 1_000)

    def _note(self, entry: _Entry) -> None:
        entry.version = self._version = next(self._versions)


def _recall_verdict(entry: _Entry, stamp: Stamp, summary: Summary) -> None:
    """That of an earlier start, where no file that the doctor reads has changed since."""
    judged = judged_stamp(entry.place, entry.stamp)
    if summary.get("is_judged") and judged_stamp(entry.place, stamp) == judged:
        entry.judged, entry.found = judged, summary.get("findings")


def _urgency(entry: _Entry) -> tuple[bool, bool, str]:
    summary = entry.summary
    return summary["findings"] is None, summary["study"] is None, summary["updated"] or ""


def begin_at_end(row: RunRow) -> None:
    """The first look at a long file: its newest rows only."""
    digest = row._digest
    try:
        with open_bytes(digest.path) as file:
            file.seek(-TAIL_BYTES, 2)
            file.readline()
            digest._end = file.tell()
    except OSError:
        return


def read_row(path: str) -> RunRow | None:
    """All of a run, for the index: in another process."""
    row = RunRow(RunFolder(path), with_spark=True)
    try:
        row.row()
    except BROKEN:
        return None
    return row


def _leads_out(place: Place) -> LeadsOut | None:
    try:
        for name in NOT_LINKS:
            link_must_stay_inside(place.path / name, place.path)
    except LeadsOut as error:
        return error
    return None


def _is_long(stamp: Stamp) -> bool:
    metrics = stamp[METRICS]
    return metrics is not None and metrics[1] > LONG


def _spark(record: RunRecord) -> dict[str, Any]:
    buckets = LossBuckets()
    for steps, losses in record.rows("train").blocks("step", "loss"):
        buckets.add(losses.tolist(), lambda at, steps=steps: int(steps[at]))
    return {"spark": buckets.values(), "spark_steps": buckets.steps()}


def _named(sources: Sequence[Path]) -> list[tuple[str, Path]]:
    """The names of folders; whole paths where two are the same."""
    names = [path.resolve().name or str(path) for path in sources]
    return [
        (name if names.count(name) == 1 else str(path), _from_here(path))
        for name, path in zip(names, sources, strict=True)
    ]


def _from_here(path: Path) -> Path:
    """As short as commands that are typed where the board was started may name it. A run has to have a name."""
    whole, here = path.resolve(), Path.cwd()
    is_nameless = whole == here and holds_one_run(whole)
    return whole.relative_to(here) if whole.is_relative_to(here) and not is_nameless else whole
