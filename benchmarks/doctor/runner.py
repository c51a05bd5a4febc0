"""Runs side by side, each in a process and a folder of its own. What is finished is never run again."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from case import Case

TRUTH = "bench.json"  # in a run's folder, written last: what was done to it
KEPT = ("metrics.jsonl", "events.jsonl", "manifest.json", "config.yaml", TRUTH)
DATA = "data"


@dataclass(frozen=True)
class Entry:
    """One run of the bench. Everything else follows from it."""

    kind: str  # a kind of fault, or `clean`
    architecture: str  # of a clean run, the name of its setting
    seed: int
    half: str
    causes: tuple[str, ...] = ()
    is_twin: bool = False  # the same run without its fault

    @property
    def name(self) -> str:
        return "-".join([self.kind, self.architecture, str(self.seed), *(["twin"] if self.is_twin else [])])

    def folder(self, out: Path) -> Path:
        """Beside those of its half; a twin, which is only ever compared with, in a folder of its own."""
        return out / ("twins" if self.is_twin else self.half) / self.name

    def is_finished(self, out: Path) -> bool:
        return (self.folder(out) / TRUTH).is_file()


def train_case(case: Case, folder: Path, *, keep_checkpoints: bool = False) -> str:
    """Train what the case says in this folder; says how it ended. A run that fails is a result as well."""
    from model_patches import interrupted_at

    from trainbook import api
    from trainbook.errors import Interrupted, RunError

    cache = {"data.cache_dir": str(folder.parents[1] / DATA / "cache")}
    case.base(cache)
    parts: list[list[Any]] = [case.patches]
    if case.stop_at is not None:
        parts = [[*case.patches, interrupted_at(case.stop_at)], case.patches_of_resumed]
    ended = ""
    for number, part in enumerate(parts, start=1):
        with ExitStack() as held:
            for patch in part:
                held.enter_context(patch)
            try:
                result = api.train(
                    case.recipe or {}, case.overrides, name=folder.name, runs_dir=folder.parent, quiet=True
                )
                ended = result.ended
            except Interrupted:
                if number == len(parts):
                    raise  # nobody asked for it
            except RunError as error:
                ended = f"{type(error).__name__}: {error}"
    if not keep_checkpoints:
        _keep_what_the_doctor_reads(folder)
    return ended


def _keep_what_the_doctor_reads(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in KEPT:
            path.unlink()


def run_entry(entry: Entry, out: Path, keep_checkpoints: bool = False) -> None:
    """In a process of its own."""
    import torch
    from entries import case_of

    torch.set_num_threads(1)
    sys.argv = ["trainbook"]  # the manifest keeps the command: it must not name the fault
    folder = entry.folder(out)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    started, used = time.perf_counter(), time.process_time()
    ended = train_case(case_of(entry, out / DATA), folder, keep_checkpoints=keep_checkpoints)
    truth = {
        **asdict(entry),
        "ended": ended,
        "seconds": round(time.perf_counter() - started, 2),
        "processor_seconds": round(time.process_time() - used, 2),
    }
    (folder / TRUTH).write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")


def _run_apart(entry: Entry, out: Path) -> None:
    os.setsid()  # Ctrl-C is for the process that runs them all: it ends this one
    run_entry(entry, out)


def run_all(entries: Sequence[Entry], out: Path, jobs: int, say: Callable[[str], None] = print) -> list[str]:
    """All that are not finished yet, so many at a time. Gives the names of those that broke."""
    waiting = [entry for entry in entries if not entry.is_finished(out)]
    total, started, broken = len(waiting), time.monotonic(), []
    say(f"{len(entries)} runs, {len(entries) - total} of them finished before")
    # A server with everything imported forks a process for each run: nothing of one run is left for the next.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["runner_imports"])
    os.environ["OMP_NUM_THREADS"] = "1"
    running: dict[Any, tuple[Any, Entry]] = {}
    done = 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                entry = waiting.pop(0)
                process = context.Process(target=_run_apart, args=(entry, out))
                process.start()
                running[process.sentinel] = (process, entry)
            for sentinel in wait(list(running)):
                process, entry = running.pop(sentinel)
                process.join()
                done += 1
                if not entry.is_finished(out):
                    broken.append(entry.name)
                left = (time.monotonic() - started) / done * (total - done)
                state = "" if entry.is_finished(out) else "  BROKE"
                say(f"  {done}/{total}  {entry.name}{state}  ({left / 60:.1f} minutes left)")
    except KeyboardInterrupt:
        for process, entry in running.values():
            process.kill()
            process.join()
            shutil.rmtree(entry.folder(out), ignore_errors=True)
        say(f"stopped: {done} of {total} are finished; the same command goes on with the rest")
        raise SystemExit(130) from None
    return broken
