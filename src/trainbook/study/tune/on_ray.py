"""The trials of a study as tasks of a Ray cluster, each with a GPU of its own where the cluster has any.

Ray only says where and when. A task starts a worker as a process, which takes one trial from the ledger; so a task that
is lost is a worker that died, and all that holds for these holds here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainbook.errors import MissingExtra, UserError
from trainbook.study.tune.workers import PREFIXES, SAVING_SECONDS, command_of, first_line, name_of, say

LOCAL = "local"  # instead of an address: a Ray of this machine, for this study
DIED = -9  # what is told of a worker whose task was lost
STOPPING = "stopping"  # a folder of the study, with a file for each worker that is asked to stop
POLL_SECONDS = 0.2


@dataclass
class RayWorkers:
    folder: Path
    url: str
    count: int
    command: Sequence[str] = ()
    lease_seconds: float = 60.0
    address: str = LOCAL
    alive: dict[str, Any] = field(default_factory=dict)  # tasks, by the name of their worker
    _ray: Any = None
    _began: bool = False  # this Ray is ours to end
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra("tune --ray", "ray", "ray") from None
        self._ray = ray
        if not ray.is_initialized():
            passed = {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}
            options: dict[str, Any] = (
                {"num_cpus": max(self.count, os.cpu_count() or 1)} if self.address == LOCAL else {}
            )
            try:
                ray.init(
                    address=self.address,
                    include_dashboard=False if self.address == LOCAL else None,
                    runtime_env={"env_vars": passed},
                    log_to_driver=False,
                    **options,
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise UserError(
                    f"--ray: no cluster answers at '{self.address}': {str(error).splitlines()[0]}"
                ) from None
            self._began = True

    def start(self, number: int) -> None:
        name = name_of(number)
        gpus = 1 if self._ray.cluster_resources().get("GPU", 0) else 0
        command = [*command_of(self.command, self.folder.absolute(), name, self.lease_seconds), "--most", "1"]
        task = self._ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(run_worker)
        self.alive[name] = task.remote(command, first_line(self.url, 1.0), str(self._word(name)))

    def _word(self, name: str) -> Path:
        return self.folder.absolute() / STOPPING / name

    def ended(self) -> list[tuple[str, int]]:
        found = []
        for name, task in list(self.alive.items()):
            if self._ray.wait([task], timeout=0)[0]:
                found.append((name, self._code(task)))
                del self.alive[name]
        return found

    def _code(self, task: Any) -> int:
        try:
            return int(self._ray.get(task))
        except self._ray.exceptions.TaskCancelledError:
            return 130
        except self._ray.exceptions.RayError:
            return DIED

    def ask_to_stop(self) -> None:
        """Ray forgets what waits for a place. What runs reads it in a file: Ray's own interruption may get lost."""
        for name, task in self.alive.items():
            if name not in self._told:
                self._told.add(name)
                self._word(name).parent.mkdir(exist_ok=True)
                self._word(name).touch()
                self._ray.cancel(task, force=False)

    def kill(self) -> None:
        for task in self.alive.values():
            self._ray.cancel(task, force=True)

    def end(self) -> list[str]:
        names = list(self.alive)
        self.ask_to_stop()
        if self.alive:
            self._ray.wait(list(self.alive.values()), num_returns=len(self.alive), timeout=SAVING_SECONDS)
        self.alive.clear()
        shutil.rmtree(self.folder / STOPPING, ignore_errors=True)
        if self._began:
            self._ray.shutdown()
        return names

    def last_words(self) -> str:
        return "see the logs of Ray's own workers"


def run_worker(command: Sequence[str], told: bytes, word: str) -> int:
    """In a task: its exit code. Once `word`, a file, is there, or the task is cancelled, the worker saves and ends."""
    given = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    child = subprocess.Popen(list(command), stdin=subprocess.PIPE, env=given, start_new_session=True)
    say(child, told)
    is_told = False
    while True:
        try:
            if (code := child.poll()) is not None:
                return code
            time.sleep(POLL_SECONDS)
            is_asked = os.path.exists(word)
        except KeyboardInterrupt:
            is_asked = True
        if is_asked and not is_told:
            is_told = True
            say(child, b"\n")
