"""Runs side by side, each in a process and a folder of its own. What is finished is never run again."""

from __future__ import annotations

import importlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from strangers.entries import HEALTHY, TRUTH, Entry, job_of
from strangers.job import Job
from strangers.kinds import KINDS
from strangers.programs import watched

LIMIT = 120  # seconds: a run that takes longer is broken
MODULES = {
    "builtin": "strangers.programs.trainbook_run",
    "own": "strangers.programs.trainbook_run",
    "fit": "strangers.programs.fit",
    "huggingface": "strangers.programs.huggingface",
    "loop": "strangers.programs.loop",
}


def run_entry(entry: Entry, out: Path) -> None:
    """In a process of its own."""
    import torch

    torch.set_num_threads(1)
    sys.argv = ["train.py"]  # what a run records of its command must not name the fault
    folder = entry.folder(out)
    shutil.rmtree(folder, ignore_errors=True)
    place = folder / "run"  # the doctor sees this name
    if MODULES[entry.program].endswith((".huggingface", ".loop")):
        place.mkdir(parents=True)
    else:
        folder.mkdir(parents=True)
    started, used = time.perf_counter(), time.process_time()
    job = job_of(entry)
    program = importlib.import_module(MODULES[entry.program])
    try:
        found = program.train(job, place)
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError, FloatingPointError) as error:
        found = {"record": ".", "ended": f"{type(error).__name__}: {error}", "best": math.nan, "last": {}, "true": {}}
        if entry.is_healthy:
            raise
    truth = {
        **asdict(entry),
        **facts_of(entry, job),
        "ended": "finished",
        "watched": (folder / watched.FOLDER / watched.NAME).is_dir(),
        **found,
        "seconds": round(time.perf_counter() - started, 2),
        "processor_seconds": round(time.process_time() - used, 2),
    }
    unfinished = folder / f"{TRUTH}.unfinished"
    unfinished.write_text(json.dumps(truth) + "\n", encoding="utf-8")
    unfinished.rename(folder / TRUTH)


def facts_of(entry: Entry, job: Job) -> dict[str, Any]:
    from strangers import core

    kind = None if entry.kind == HEALTHY else KINDS[entry.kind]
    return {
        "family": entry.family or job.family,
        "task": job.task,
        "style": job.style,
        "group": kind.group if kind else HEALTHY,
        "causes": [] if entry.is_healthy or kind is None else list(kind.causes),
        "misleads": bool(kind and kind.misleads),
        "optimizer": job.optimizer,
        "rate": job.rate,
        "baseline": core.baseline(job),
    }


def _run_apart(entry: Entry, out: Path) -> None:
    os.setsid()  # Ctrl-C is for the process that runs them all: it ends this one
    with (out / "noise.txt").open("a") as noise, redirect_stdout(noise), redirect_stderr(noise):
        try:
            run_entry(entry, out)
        except BaseException as error:
            import traceback

            noise.write(f"{entry.name}\n{traceback.format_exc()}\n")
            raise SystemExit(1) from error


def _say(line: str) -> None:
    print(line, flush=True)


def run_all(entries: Sequence[Entry], out: Path, jobs: int, say: Callable[[str], None] = _say) -> list[str]:
    """All that are not finished yet, so many at a time. Gives the names of those that broke."""
    out.mkdir(parents=True, exist_ok=True)
    waiting = [entry for entry in entries if not entry.is_finished(out)]
    total, started, broken, done = len(waiting), time.monotonic(), [], 0
    say(f"{len(entries)} runs, {len(entries) - total} of them finished before")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["strangers.preload"])
    running: dict[Any, tuple[Any, Entry, float]] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                entry = waiting.pop(0)
                process = context.Process(target=_run_apart, args=(entry, out))
                process.start()
                running[process.sentinel] = (process, entry, time.monotonic())
            for process, _, began in running.values():
                if time.monotonic() - began > LIMIT:
                    process.kill()
            for sentinel in wait(list(running), timeout=10):
                process, entry, _ = running.pop(sentinel)
                process.join()
                done += 1
                if not entry.is_finished(out):
                    broken.append(entry.name)
                    say(f"  BROKE {entry.name}")
                if done % 50 == 0 or done == total:
                    left = (time.monotonic() - started) / done * (total - done)
                    say(f"  {done}/{total}  ({left / 60:.1f} minutes left)")
    except KeyboardInterrupt:
        for process, entry, _ in running.values():
            process.kill()
            process.join()
            shutil.rmtree(entry.folder(out), ignore_errors=True)
        say(f"stopped: {done} of {total} are finished; the same command goes on with the rest")
        raise SystemExit(130) from None
    return broken
