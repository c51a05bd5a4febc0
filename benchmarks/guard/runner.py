"""Runs side by side in a pool of processes. What is finished is never run again."""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HALVES = ("development", "held-out")
HEALTHY = (*HALVES, "fresh")  # which has healthy programs alone, and no bad data


def families_of_half(half: str) -> dict[str, Any]:
    """Loaded by name only: what is held out is not so much as imported for another half."""
    if half == "development":
        from guard.families_development import FAMILIES
    elif half == "held-out":
        from guard.families_held_out import FAMILIES
    else:
        from guard.families_fresh import FAMILIES
    return FAMILIES


def run_one(task: tuple[str, str, int, str, dict[str, Any], str]) -> dict[str, Any]:
    """One family with one seed under one policy, in a process of the pool."""
    import numpy as np
    import torch

    from guard.door import Door, NotForIt, outcome_of
    from trainbook.errors import Diverged

    torch.set_num_threads(1)
    half, name, seed, policy, options, out = task
    family = families_of_half(half)[name]
    door, quality, applies = Door(policy, options), math.nan, True
    started, broke = time.process_time(), ""
    try:
        quality = family.train(seed, door)
    except Diverged:
        pass  # the door has been told
    except NotForIt:
        applies = False
    except Exception as error:
        broke = f"{type(error).__name__}: {error}"
    outcome = outcome_of(door, name, family.kind, seed, quality, time.process_time() - started)
    outcome.does_not_apply, outcome.broke = not applies, broke
    if policy == "trace":
        path = Path(out) / half / "traces" / f"{name}.{seed}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        traces: dict[str, Any] = {key: np.array(rows, dtype=np.float32) for key, rows in door.traces.items()}
        np.savez_compressed(path, **traces)
    return outcome.row


def _quiet() -> None:
    """What a guard does is in the rows of the results."""
    logging.getLogger("trainbook.guard").setLevel(logging.CRITICAL)


def in_pool(
    do: Callable[[Any], dict[str, Any]],
    tasks: Sequence[Any],
    jobs: int,
    file: Path,
    say: Callable[[str], None] = print,
    *,
    until: float = math.inf,
) -> int:
    """Each answer is a line of the file as soon as it is there: a bench that is killed loses the runs under way alone.
    No run is begun after `until`, in seconds of `time.time`. Gives how many are left to do."""
    if not tasks:
        return 0
    os.environ["OMP_NUM_THREADS"] = "1"
    file.parent.mkdir(parents=True, exist_ok=True)
    started, left = time.monotonic(), 0
    with (
        multiprocessing.get_context("spawn").Pool(min(jobs, len(tasks)), initializer=_quiet) as pool,
        open(file, "a", encoding="utf-8") as lines,
    ):
        if not _ends_with_a_line(file):
            lines.write("\n")  # a line that was cut off must not spoil the next one
        for number, row in enumerate(pool.imap_unordered(partial(_unless_late, do, until), tasks), start=1):
            if row is None:
                left += 1
                continue
            if row.get("broke"):
                say(f"  BROKE: {row}")
                continue  # to be run again
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            if number % max(1, len(tasks) // 10) == 0 or number == len(tasks):
                say(f"  {number}/{len(tasks)} runs, {time.monotonic() - started:.0f} s")
    if left:
        say(f"  {left} runs are left: the time is up. The same command goes on with them.")
    return left


def _unless_late(do: Callable[[Any], dict[str, Any]], until: float, task: Any) -> dict[str, Any] | None:
    return do(task) if time.time() < until else None


def _ends_with_a_line(file: Path) -> bool:
    return not file.stat().st_size or file.read_bytes().endswith(b"\n")


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Also of a file whose last line was cut off: that run is done again."""
    rows = []
    if file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


def healthy_file(out: Path, half: str, label: str) -> Path:
    return out / half / f"{label}.jsonl"


def run_healthy(
    half: str,
    seeds: Iterable[int],
    policy: str,
    out: Path,
    jobs: int,
    *,
    options: dict[str, Any] | None = None,
    names: Sequence[str] | None = None,
    until: float = math.inf,
) -> list[dict[str, Any]]:
    """All families of a half with these seeds; gives the rows of all of them, also of what was finished before."""
    given, wanted = options or {}, list(seeds)
    label = "-".join([policy, *(f"{key}={value}" for key, value in sorted(given.items()))])
    file = healthy_file(out, half, label)
    chosen = list(names or families_of_half(half))
    finished = {(row["family"], row["seed"]) for row in read_rows(file)}
    tasks = [
        (half, name, seed, policy, given, str(out))
        for seed in wanted
        for name in chosen
        if (name, seed) not in finished
    ]
    print(f"{half}, {label}: {len(chosen)} families, {len(wanted)} seeds, {len(tasks)} runs to do", flush=True)
    in_pool(run_one, tasks, jobs, file, until=until)
    return [row for row in read_rows(file) if row["seed"] in wanted and row["family"] in chosen]
