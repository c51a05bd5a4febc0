"""Every run of the bench, each in a process and a folder of its own."""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from public_cases import autotrainer, traincheck, transformer_faults, traps  # noqa: F401 — they register cases
from public_cases.cases import CASES, Case, Run

TRUTH = "truth.json"  # in an entry's folder, written last
SEEDS = (0, 1)
FAULTY, TWIN, GUARDED = "faulty", "twin", "guarded"


@dataclass(frozen=True)
class Entry:
    case: str
    seed: int
    kind: str  # faulty, twin (the same without its bug) or guarded (faulty, under the guard)

    @property
    def name(self) -> str:
        return f"{self.case}-{self.seed}-{self.kind}"

    def folder(self, out: Path) -> Path:
        return out / self.name

    def run(self, out: Path) -> Run:
        return Run(self.folder(out), self.seed, self.kind != TWIN, self.kind == GUARDED)

    def truth(self, out: Path) -> dict[str, Any] | None:
        path = self.folder(out) / TRUTH
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def all_entries(names: Sequence[str] | None = None) -> list[Entry]:
    chosen = [case for case in CASES.values() if not names or case.name in names]
    return [Entry(case.name, seed, kind) for case in chosen for seed in SEEDS for kind in kinds(case)]


def kinds(case: Case) -> tuple[str, ...]:
    return (FAULTY, TWIN, GUARDED) if case.guard else (FAULTY, TWIN)


def named(causes: Sequence[str]) -> str:
    """A cause in brackets is not in the doctor's vocabulary."""
    from trainbook.doctor.causes import CAUSES

    return "/".join(cause if cause in CAUSES else f"[{cause}]" for cause in causes)


def run_entry(entry: Entry, out: Path) -> None:
    import torch

    torch.set_num_threads(1)
    sys.argv = ["train.py"]  # what a run records of its command must not name the bug
    folder = entry.folder(out)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started, ended, score = time.perf_counter(), "finished", {"loss": math.nan}
    try:
        score = CASES[entry.case].train(entry.run(out))
    except Exception as error:
        ended = f"{type(error).__name__}: {error}"
        if entry.kind == TWIN or not entry.run(out).record.is_dir():
            raise
    truth = {"score": score, "ended": ended, "seconds": round(time.perf_counter() - started, 2)}
    unfinished = folder / f"{TRUTH}.unfinished"
    unfinished.write_text(json.dumps(truth) + "\n", encoding="utf-8")
    unfinished.rename(folder / TRUTH)


def _run_apart(entry: Entry, out: Path) -> None:
    with (out / "noise.txt").open("a") as noise, redirect_stdout(noise), redirect_stderr(noise):
        run_entry(entry, out)


def run_all(entries: Sequence[Entry], out: Path, jobs: int) -> list[str]:
    """All that are not finished yet, so many at a time. Gives those that broke, with the reason."""
    out.mkdir(parents=True, exist_ok=True)
    waiting = [entry for entry in entries if entry.truth(out) is None]
    print(f"{len(entries)} runs, {len(entries) - len(waiting)} of them finished before", flush=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["public_cases.runs", "transformers.trainer", "trainbook"])
    broken = []
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        futures = {pool.submit(_run_apart, entry, out): entry for entry in waiting}
        for number, future in enumerate(as_completed(futures), 1):
            if (error := future.exception()) is not None:
                broken.append(f"{futures[future].name}: {type(error).__name__}: {error}")
            if number % 20 == 0 or number == len(waiting):
                print(f"  {number}/{len(waiting)}", flush=True)
    return broken
