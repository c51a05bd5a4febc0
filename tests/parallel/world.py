"""Worlds of several processes on this machine.

Ranks are forked from one process that has imported everything (multiprocessing's fork server): importing takes longer
than most cases.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 900  # a case that does not end is a failure, not a wait
ONCE = ["tests.parallel.worker", "torch._dynamo", "torch.distributed.checkpoint"]  # what the fork server imports


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    found = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # the tests are its modules too
    given = {**place, **meeting, "PYTHONPATH": found}
    return {**os.environ, **{name: str(value) for name, value in given.items()}}


class Processes:
    """So many ranks that have joined, and run one case after the other as they are asked to.

    `run_case` is what a rank does with a case: a function of the case, the folder of the runs, and its ranks.
    """

    def __init__(self, size: int, folder: Path, run_case: Callable[..., dict[str, Any]] | None = None) -> None:
        self.size, self.folder, self.run_case = size, folder, run_case
        self.logs = [folder / f"rank-{rank}.log" for rank in range(size)]
        self.ranks: list[Any] = []
        self.number = 0
        for left in folder.glob("case-*.json"):  # of an earlier world of the same runs
            left.unlink()

    def __enter__(self) -> Processes:
        return self

    def run(self, case: dict[str, Any]) -> list[dict[str, Any]]:
        """What each rank saw."""
        self._give(case)
        answers = [self.folder / f"{case['name']}-{rank}.json" for rank in range(self.size)]
        deadline = time.monotonic() + SECONDS
        while not all(answer.exists() for answer in answers):
            if any(rank.exitcode is not None for rank in self.ranks) or time.monotonic() > deadline:
                self._stop(seconds=60)
                raise AssertionError(f"{case['name']}: {[rank.exitcode for rank in self.ranks]}\n{self.said()}")
            time.sleep(0.01)
        return [json.loads(answer.read_text(encoding="utf-8")) for answer in answers]

    def close(self) -> None:
        if self.ranks:
            self._give(None)
            self._stop(SECONDS)
            assert [rank.exitcode for rank in self.ranks] == [0] * self.size, self.said()
            self.ranks = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if error is None:
            self.close()
        else:
            self._stop(seconds=0)

    def said(self) -> str:
        texts = [log.read_text(encoding="utf-8")[-3000:] if log.exists() else "" for log in self.logs]
        return "\n".join(f"rank {rank}:\n{text}" for rank, text in enumerate(texts))

    def _give(self, case: dict[str, Any] | None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self.folder / f"case-{self.number}.json", case)
        self.number += 1
        if not self.ranks:
            self._start()

    def _start(self) -> None:
        from tests.parallel import worker

        if str(ROOT) not in sys.path:
            sys.path.append(str(ROOT))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(ONCE)
        port = free_port()
        for rank, log in enumerate(self.logs):
            given = (self.folder, log, environment(rank, self.size, port), self.run_case or worker.run)
            self.ranks.append(context.Process(target=worker.main, args=given, daemon=True))
            self.ranks[-1].start()

    def _stop(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for rank in self.ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
        for rank in self.ranks:
            rank.kill()
            rank.join()


def write(path: Path, content: Any) -> None:
    """At once: whoever waits for the file finds it whole."""
    begun = path.with_suffix(".begun")
    begun.write_text(json.dumps(content), encoding="utf-8")
    begun.rename(path)


def run_world(
    world: int, cases: list[dict[str, Any]], folder: Path, run_case: Callable[..., dict[str, Any]] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Every case in one world; what each rank saw, by the case's name."""
    with Processes(world, folder, run_case) as processes:
        return {case["name"]: processes.run(case) for case in cases}
