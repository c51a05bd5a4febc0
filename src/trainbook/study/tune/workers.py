"""The workers of a study: processes of this machine, or tasks of a Ray cluster. Started, told to stop, and followed to
their end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainbook.bounded.files import open_bytes
from trainbook.contained import open_no_link
from trainbook.errors import MissingExtra, RunFolderError, UserError
from trainbook.runs import make_folder
from trainbook.study.workers import PREFIXES, environment, workers_per_device
from trainbook.supervisor import Supervisor

LOGS = "logs"
SAVING_SECONDS = 60.0  # that a worker has to save what is under way, when the study cannot go on
LOCAL = "local"  # instead of an address: a Ray of this machine, for this study
DIED = -9  # what is told of a worker whose task was lost
STOPPING = "stopping"  # a folder of the study, with a file for each worker that is asked to stop
POLL_SECONDS = 0.2


@dataclass
class Workers:
    folder: Path  # of the study
    url: str
    count: int
    command: Sequence[str] = ()
    lease_seconds: float = 60.0
    added: Mapping[str, str] = field(default_factory=dict)  # to their environment
    processes: Supervisor[str] = field(default_factory=Supervisor)  # by name
    _log_begins: dict[Path, int] = field(default_factory=dict)

    def start(self, number: int) -> None:
        name = name_of(number)
        path = self.folder / LOGS / f"worker-{number}.log"
        make_folder(path.parent)
        if path.is_dir():
            raise RunFolderError(f"{path} is a folder, but should be a file: remove it.")
        self._log_begins.setdefault(path, path.stat().st_size if path.exists() else 0)
        command = command_of(self.command, self.folder, name, self.lease_seconds)
        given = environment(number, self.count, {**os.environ, **self.added})
        with open(open_no_link(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
            # It leaves when our end of the pipe closes.
            self.processes.start(name, command, given, stdin=subprocess.PIPE, stdout=log, stderr=log)
        # An address may have a password, which all users of the machine could read in a command line.
        self.processes.write(name, first_line(self.url, 1 / workers_per_device(self.count)))

    @property
    def are_alive(self) -> bool:
        return bool(self.processes.alive)

    def ended(self) -> list[tuple[str, int]]:
        """Names and exit codes of those that have ended since."""
        return self.processes.ended()

    def ask_to_stop(self) -> None:
        self.processes.ask_to_stop()

    def kill(self) -> None:
        self.processes.kill()

    def end(self) -> list[str]:
        """All of them, saved if they still can be. Returns their names."""
        self.ask_to_stop()
        return [name for name, _ in self.processes.end(SAVING_SECONDS)]

    def last_words(self) -> str:
        """Of this start, not of an earlier one."""
        for path, begins in sorted(self._log_begins.items()):
            with open_bytes(path) as log:
                log.seek(begins)
                lines = log.read().decode(errors="replace").strip().splitlines()
            if lines:
                return lines[-1]
        return "nothing"


def name_of(number: int) -> str:
    return f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}-{number}"


def command_of(command: Sequence[str], folder: Path, name: str, lease_seconds: float) -> list[str]:
    begin = command or [sys.executable, "-m", "trainbook.cli.trial"]
    return [*begin, str(folder), "--worker", name, "--lease", str(lease_seconds)]


def first_line(url: str, share: float) -> bytes:
    """What a worker is told first, through its input; its end, or any more of it, ends the worker."""
    return json.dumps({"storage": url, "share": share}).encode() + b"\n"


@dataclass
class RayWorkers:
    """The same on a Ray cluster, each with a GPU of its own where the cluster has any.

    Ray only says where and when. A task starts a worker as a process, which takes one trial from the ledger; so a task
    that is lost is a worker that died, and all that holds for these holds here.
    """

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

    @property
    def are_alive(self) -> bool:
        return bool(self.alive)

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
    processes: Supervisor[str] = Supervisor()
    processes.start(word, command, given, stdin=subprocess.PIPE)
    processes.write(word, told)
    while True:
        try:
            if ended := processes.ended():
                return ended[0][1]
            time.sleep(POLL_SECONDS)
            is_asked = os.path.exists(word)
        except KeyboardInterrupt:
            is_asked = True
        if is_asked:
            processes.ask_to_stop()
