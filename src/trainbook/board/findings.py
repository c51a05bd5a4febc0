"""What the doctor says of each run, judged in a process of its own and kept as long as the run's files are the same."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from trainbook.board.finding_runs import Place, Stamp, judged_stamp
from trainbook.board.memory import giving_back
from trainbook.doctor import CAUSES, Diagnosis, Finding, diagnose
from trainbook.doctor.causes import certainty_of, remedy_of
from trainbook.finding import ORDER
from trainbook.runs.foreign.vocabulary import where_to_set
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord

MOST_KEPT = 500
REST = 20.0  # seconds between two judgements of one run, which may go on
LOWER_PRIORITY = 10  # of the process, so that training goes first


@dataclass(frozen=True)
class Verdict:
    """`diagnosis` is None where the rules could not be judged, for the `problem`."""

    stamp: Stamp
    diagnosis: Diagnosis | None
    problem: str = ""
    made: float = 0.0  # by the monotonic clock
    is_final: bool = True  # False: the process that judged was ended, so the run is judged again

    @property
    def counts(self) -> dict[str, int]:
        found = self.diagnosis.findings if self.diagnosis is not None else []
        return {severity: sum(each.severity == severity for each in found) for severity in ORDER}


class Worker:
    """Work that would keep the server from answering, in a process of its own, which is started when it is needed."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor, self._is_given = executor, executor is not None
        self._lock = threading.Lock()

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        with self._lock:
            if self._executor is None:
                self._executor = ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin)
            try:
                return self._executor.submit(giving_back, work, *args)
            except BrokenProcessPool:  # it was killed, as for want of memory
                self._executor = ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin)
                return self._executor.submit(giving_back, work, *args)

    def close(self) -> None:
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is None:
            return
        processes = list((getattr(executor, "_processes", None) or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    os.nice(LOWER_PRIORITY)
    threading.Thread(target=_end_with_the_server, daemon=True).start()


def _end_with_the_server() -> None:
    """Also when it was killed, and could end nobody."""
    server = parent_process()
    if server is not None:
        server.join()
        os._exit(0)


def judged(path: str) -> tuple[Diagnosis | None, str]:
    try:
        return diagnose(open_record(Path(path))), ""
    except Exception as error:  # of files that nobody expected: the board goes on
        return None, f"{type(error).__name__}: {error}"


class Verdicts:
    """`tell` is called with the id of a run when there is something new to show of it."""

    def __init__(self, worker: Worker, tell: Callable[[str, Verdict], None], rest: float = REST) -> None:
        self._worker, self._tell, self.rest = worker, tell, rest
        self._known: OrderedDict[str, Verdict] = OrderedDict()
        self._asked: dict[str, threading.Event] = {}  # which is set when the verdict is known and told
        self._later: set[str] = set()
        self._is_closed = False
        self._lock = threading.Lock()

    def of(self, place: Place, stamp: Stamp, wait: float = 0.0) -> tuple[Verdict | None, bool]:
        """The newest verdict, and whether it is of the run as it is now."""
        stamp = judged_stamp(place, stamp)
        with self._lock:
            known = self._known.get(place.id)
            if known is not None and known.stamp == stamp and known.is_final:
                return known, True
            rest = 0.0 if known is None else known.made + self.rest - time.monotonic()
            if rest > 0:
                self._ask_later(place, rest)
                return known, False
        is_told = self._ask(place, stamp)
        if wait and known is None:
            is_told.wait(wait)
        with self._lock:
            known = self._known.get(place.id)
            return known, known is not None and known.stamp == stamp and known.is_final

    def _ask(self, place: Place, stamp: Stamp) -> threading.Event:
        with self._lock:
            if place.id in self._asked:
                return self._asked[place.id]
            is_told = self._asked[place.id] = threading.Event()
        try:
            future = self._worker.submit(judged, str(place.path))
        except Exception as error:
            future = Future()
            future.set_exception(error)
        future.add_done_callback(lambda done: self._note(place.id, stamp, done, is_told))
        return is_told

    def _ask_later(self, place: Place, seconds: float) -> None:
        """Once, however often it is asked for until then."""
        if place.id in self._later:
            return
        self._later.add(place.id)

        def ask() -> None:
            with self._lock:
                self._later.discard(place.id)
                is_closed = self._is_closed
            if not is_closed:
                self._ask(place, judged_stamp(place, place.stamp()))

        timer = threading.Timer(seconds, ask)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True

    def _note(self, id: str, stamp: Stamp, done: Future[Any], is_told: threading.Event) -> None:
        try:
            (diagnosis, problem), is_final = done.result(), True
        except BaseException as error:
            diagnosis, problem, is_final = None, f"{type(error).__name__}: {error}", False
        verdict = Verdict(stamp, diagnosis, problem, time.monotonic(), is_final)
        with self._lock:
            self._asked.pop(id, None)
            self._known[id] = verdict
            self._known.move_to_end(id)
            while len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)
        try:
            self._tell(id, verdict)
        finally:
            is_told.set()


def as_facts(finding: Finding, record: RunRecord, command: str | None) -> dict[str, Any]:
    return {
        "severity": finding.severity,
        "title": CAUSES[finding.cause].sentence,
        "cause": finding.cause,
        "certainty": certainty_of(finding),
        "evidence": [_sentence(text) for text in (finding.evidence, *finding.also) if text],
        "against": CAUSES[finding.explained_by].sentence if finding.explained_by in CAUSES else None,
        "remedy": remedy_of(finding),
        "command": command,
        "override": where_to_set(record, finding.override) if finding.override else None,
        "rule": finding.rule,
        "steps": list(finding.steps) if finding.steps else None,
        "knob": CAUSES[finding.cause].knob,
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
