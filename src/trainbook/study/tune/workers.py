"""The workers of a study as processes of this machine: started, told to stop, and followed to their end.

`on_ray.py` has the same for a Ray cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from trainbook.bounded.files import open_bytes
from trainbook.contained import open_no_link
from trainbook.errors import RunFolderError
from trainbook.runs import make_folder

LOGS = "logs"
SAVING_SECONDS = 60.0  # that a worker has to save what is under way, when the study cannot go on
# A worker is alone in its run: it must not take the place of whoever started it in another one for its own.
PLACES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
PREFIXES = ("SLURM_", "TORCHELASTIC_", "TRAINBOOK_NOTE", "PMI_", "OMPI_")


@dataclass
class Workers:
    folder: Path  # of the study
    url: str
    count: int
    command: Sequence[str] = ()
    lease_seconds: float = 60.0
    alive: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)  # by name
    _log_begins: dict[Path, int] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)  # to stop

    def start(self, number: int) -> None:
        name = name_of(number)
        path = self.folder / LOGS / f"worker-{number}.log"
        make_folder(path.parent)
        if path.is_dir():
            raise RunFolderError(f"{path} is a folder, but should be a file: remove it.")
        self._log_begins.setdefault(path, path.stat().st_size if path.exists() else 0)
        with open(open_no_link(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
            # In a group of its own, Ctrl-C reaches it through us, once. It leaves when our end of the pipe closes.
            child = subprocess.Popen(
                command_of(self.command, self.folder, name, self.lease_seconds),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(number, self.count),
                start_new_session=True,
            )
        self.alive[name] = child
        # An address may have a password, which all users of the machine could read in a command line.
        say(child, first_line(self.url, 1 / workers_per_device(self.count)))

    def ended(self) -> list[tuple[str, int]]:
        """Names and exit codes of those that have ended since."""
        found = [(name, code) for name, child in self.alive.items() if (code := child.poll()) is not None]
        for name, _ in found:
            _close(self.alive.pop(name))
        return found

    def ask_to_stop(self) -> None:
        for name, child in self.alive.items():
            if name not in self._told:
                self._told.add(name)
                say(child, b"\n")

    def kill(self) -> None:
        for child in self.alive.values():
            child.kill()

    def end(self) -> list[str]:
        """All of them, saved if they still can be. Returns their names."""
        names = list(self.alive)
        self.ask_to_stop()
        until = time.monotonic() + SAVING_SECONDS
        for child in self.alive.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, until - time.monotonic()))
        self.kill()
        for child in self.alive.values():
            child.wait()
            _close(child)
        self.alive.clear()
        return names

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


def say(child: subprocess.Popen[bytes], what: bytes) -> None:
    with suppress(OSError):  # it is gone already
        if child.stdin is not None:
            os.write(child.stdin.fileno(), what)  # by no buffer: a signal may break in here and say something too


def _close(child: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if child.stdin is not None:
            child.stdin.close()


# Its share of the machine


def environment(number: int, workers: int, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of a worker. Cores are shared out; of several GPUs each worker has one."""
    found = {name: value for name, value in given.items() if name not in PLACES and not name.startswith(PREFIXES)}
    if "OMP_NUM_THREADS" not in given and workers > 1:
        found["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // workers))
    visible = devices(given)
    if len(visible) > 1:
        found["CUDA_VISIBLE_DEVICES"] = visible[number % len(visible)]
    return found


def devices(given: Mapping[str, str] = os.environ) -> list[str]:
    seen = given.get("CUDA_VISIBLE_DEVICES")
    if seen is not None:  # none, if it is empty
        return [each for each in seen.split(",") if each]
    # Without torch, which takes seconds to load and would hold memory on each of them.
    return [str(each) for each in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]


def workers_per_device(workers: int) -> int:
    """Of a GPU; or of the machine, where there is none."""
    return ceil(workers / max(1, len(devices())))
