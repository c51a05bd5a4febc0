"""Runs that are compared: of each only the columns that a chart needs, kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from trainbook.board.answers import Refused
from trainbook.board.finding_runs import Place, Stamp
from trainbook.board.findings import Worker
from trainbook.board.light import LightFolder
from trainbook.board.memory import give_back
from trainbook.board.records import OpenRun, Records, table_bytes
from trainbook.board.series import By, MetricName
from trainbook.errors import TrainbookError
from trainbook.report.compare import compare
from trainbook.report.compare_view import as_json
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord, read_run
from trainbook.runs.schema import METRICS

MOST_BYTES = 32 << 20
MANY = 12  # runs, whose statistics are worked out of fewer columns
SHARED = 8  # runs that are not known yet: of more, another process reads half
OF_AXES: dict[By, tuple[str, ...]] = {
    "step": (),
    "tokens": ("tokens",),
    "time": ("step_seconds", "time"),
    "flops": ("tokens",),
}
OF_STATISTICS = ("loss", "applied_updates", "tokens", "step_seconds", "time", "tokens_per_second")
AXES = {"step": "steps", "tokens": "tokens", "time": "time"}  # as compare calls them

Key = tuple[str, Stamp, tuple[str, ...]]


@dataclass(frozen=True)
class Wanted:
    """What of a run is read: without names, its evaluations."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, metric: MetricName, by: By) -> Wanted | None:
        """None: rows have to be parsed for it."""
        if metric.part is not None or metric.name not in METRICS or METRICS[metric.name].per is not None:
            return None
        if metric.split == "eval" and by == "step":
            return cls(())
        return cls(tuple(dict.fromkeys((metric.name, *OF_AXES[by]))))


class LightRuns:
    def __init__(self, records: Records, worker: Worker) -> None:
        self._records, self._worker = records, worker
        self._known: OrderedDict[Key, OpenRun] = OrderedDict()
        self._statistics: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, places: Sequence[Place], metric: MetricName, by: By) -> list[OpenRun]:
        wanted = Wanted.of(metric, by)
        found: list[OpenRun | None] = [None] * len(places)
        missing: list[int] = []
        for number, place in enumerate(places):
            if wanted is None or place.kind == "foreign" or self._records.is_open(place):
                found[number] = self._records.open(place)
            elif (known := self._known_run(place, wanted)) is not None:
                found[number] = known
            else:
                missing.append(number)
        if wanted is not None and missing:
            self._read(places, missing, wanted, found)
            give_back()
        return [run for run in found if run is not None]

    def _read(self, places: Sequence[Place], missing: list[int], wanted: Wanted, found: list[OpenRun | None]) -> None:
        """Half of many are read elsewhere at the same time."""
        shared = missing[len(missing) // 2 :] if len(missing) > SHARED else []
        futures: list[Future[Any]] = []
        if shared:
            futures = [self._worker.submit(read_light, places[number], wanted) for number in shared]
        for number in missing[: len(missing) - len(shared)]:
            found[number] = self._keep(read_light(places[number], wanted), wanted)
        for number, future in zip(reversed(shared), reversed(futures), strict=True):
            if future.cancel():  # not yet begun there
                found[number] = self._keep(read_light(places[number], wanted), wanted)
        for number, future in zip(shared, futures, strict=True):
            if found[number] is None:
                found[number] = self._keep(future.result(), wanted)

    def _known_run(self, place: Place, wanted: Wanted) -> OpenRun | None:
        key = place.id, place.stamp(), wanted.names
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
            return known

    def _keep(self, run: OpenRun | str, wanted: Wanted) -> OpenRun:
        if isinstance(run, str):
            raise Refused(400, run)
        with self._lock:
            self._known[run.place.id, run.stamp, wanted.names] = run
            total = sum(each.light_bytes for each in self._known.values())
            while total > MOST_BYTES and len(self._known) > 1:
                total -= self._known.popitem(last=False)[1].light_bytes
        return run

    def statistics(self, places: Sequence[Place], metric: MetricName, by: By) -> dict[str, Any] | None:
        """As `trainbook compare` has them, worked out in another process; None where there is nothing to compare."""
        if len(places) < 2 or by not in AXES or metric.part is not None:
            return None
        key = tuple((place.id, place.stamp()) for place in places), metric.text, by
        with self._lock:
            if key in self._statistics:
                return self._statistics[key]
        told = self._worker.submit(statistics_of, list(places), metric, by).result()
        with self._lock:
            self._statistics[key] = told
            while len(self._statistics) > 20:
                self._statistics.popitem(last=False)
        return told


def read_light(place: Place, wanted: Wanted) -> OpenRun | str:
    """A message where it cannot be read."""
    stamp = place.stamp()
    folder = LightFolder(place.path, wanted.names, "all" if wanted.names else "eval")
    try:
        metrics, events = folder.metrics(), folder.events()
    except (TrainbookError, OSError) as error:
        return str(error)
    parameters = [event["num_parameters"] for event in events if "num_parameters" in event]
    facts = {"num_parameters": parameters[-1]} if parameters else {}
    train, evaluations = (metrics.with_text("split", split) for split in ("train", "eval"))
    record = RunRecord(place.path.name, train, evaluations, facts=facts, path=place.path)
    return OpenRun(place, stamp, record, light_bytes=table_bytes(folder.last_table) + 10_000)


def statistics_of(places: Sequence[Place], metric: MetricName, by: By) -> dict[str, Any]:
    try:
        records = [_record(place, metric, len(places) > MANY) for place in places]
        name = f"{metric.split}_{metric.name}"
        facts: dict[str, Any] = as_json(compare(records, name, AXES[by]))  # pyright: ignore[reportArgumentType]
    except (TrainbookError, OSError) as error:
        return {"conclusion": str(error), "comparisons": [], "remarks": [], "groups": [], "runs": []}
    facts["groups"] = [group for group in facts["groups"] if group["at"] is not None]
    return {name: value for name, value in facts.items() if name not in ("curves", "differences", "missing")}


def _record(place: Place, metric: MetricName, are_many: bool) -> RunRecord:
    """Of many runs without tokens and times, which the table of runs would show."""
    if place.kind != "run" or metric.name not in METRICS:
        return open_record(place.path)
    if are_many and metric.split == "eval":
        return read_run(LightFolder(place.path, (), "eval"))
    names = (metric.name, *(() if are_many else OF_STATISTICS))
    return read_run(LightFolder(place.path, tuple(dict.fromkeys(names))))
