"""Starts a command as several ranks on this machine; on the terminal they behave as one program.

- Every signal is passed on to the ranks, once, and they have all the time that saving takes, until the user asks a
  second time.
- Once one rank has failed, the others have a few seconds to end by themselves and to say why. They get no signal: to
  one that is still saving after Ctrl-C that would be the second, "at once".
- After a crash all are started again, as often as was asked for; not after a mistake of the user's or Ctrl-C. A start
  that the ranks ask for themselves, in less memory, does not count.
- The store at which the ranks meet is ours, at a free port and a new one for each start: launches at the same time do
  not meet, nor do ranks find the addresses of those that are gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch.distributed import TCPStore

from trainbook.errors import RunError
from trainbook.parallel.exit_status import LOG, NOTE, ExitStatus, Verdict, asks_for_start, judge, message, read_ending
from trainbook.runs.manifest import usable_cores
from trainbook.supervisor import STOPS, Signals, Supervisor
from trainbook.terminal import echo

ADDRESS = "127.0.0.1"
GRACE_SECONDS = 10.0  # for the others, once one has failed: to end by themselves, and to say why
AT_ONCE_SECONDS = 3.0  # once the user has asked a second time
POLL_SECONDS = 0.05


def run_processes(command: Sequence[str], nproc: int, *, max_restarts: int = 0) -> int:
    """Run a command as `nproc` ranks and return the overall exit code; failures are reported on stderr.

    The first rank has the terminal. The output of the others goes to a folder, which is named if one of them fails.
    """
    folder = Path(tempfile.mkdtemp(prefix="trainbook-ranks-"))
    sys.stdout.flush()
    sys.stderr.flush()
    launcher = Launcher(command, nproc, max_restarts, folder)
    try:
        return launcher.run()
    except OSError as error:
        raise RunError(f"the {nproc} processes could not be started: {error}") from error
    finally:
        launcher.processes.end()
        if not launcher.has_told:
            shutil.rmtree(folder, ignore_errors=True)


class Launcher:
    def __init__(self, command: Sequence[str], nproc: int, max_restarts: int, folder: Path) -> None:
        self.command, self.nproc, self.max_restarts, self.folder = command, nproc, max_restarts, folder
        self.run_id = uuid.uuid4().hex
        self.processes: Supervisor[int] = Supervisor()
        self.waiting: list[int] = []  # signals to pass on
        self.sent: int | None = None  # the first that was
        self.endings: dict[int, ExitStatus] = {}
        self.kill_at: float | None = None
        self.starts = 0  # how often all were started again, for whatever reason
        self.restarts = 0  # … and after a failure
        self.has_told = False

    def run(self) -> int:
        with Signals(self.waiting.append, (*STOPS, signal.SIGTSTP)):
            while True:
                self._start()
                while self.processes.alive:
                    self._watch()
                    time.sleep(POLL_SECONDS)
                verdict = judge(list(self.endings.values()), self.sent)
                if not self._starts_again(verdict):
                    return verdict.code

    def _start(self) -> None:
        self.endings, self.kill_at = {}, None
        # Port 0: the system chooses one that is free, and the store keeps it.
        self.store = TCPStore(ADDRESS, 0, world_size=1, is_master=True, wait_for_workers=False)
        for rank in range(self.nproc):
            environment, log = self._environment(rank), self.log(rank)
            if rank == 0:
                self.processes.start(rank, self.command, environment)
                continue
            with open(log.with_suffix(".out"), "wb") as stdout, open(log, "wb") as stderr:
                self.processes.start(rank, self.command, environment, stdout=stdout, stderr=stderr)

    def _environment(self, rank: int) -> dict[str, str]:
        """As torchrun's; the store is the launcher's, which TORCHELASTIC_USE_AGENT_STORE tells PyTorch."""
        world, number = str(self.nproc), str(rank)
        variables = {
            "RANK": number,
            "LOCAL_RANK": number,
            "GROUP_RANK": "0",
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": self.run_id,
            "TORCHELASTIC_RESTART_COUNT": str(self.starts),
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            LOG: str(self.log(rank)),
            NOTE: str(self.note(rank)),
        }
        defaults = {"OMP_NUM_THREADS": str(_threads(self.nproc)), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
        return {**defaults, **os.environ, **variables}

    def log(self, rank: int) -> Path:
        return self.folder / (f"rank-{rank}-restart-{self.starts}.log" if self.starts else f"rank-{rank}.log")

    def note(self, rank: int) -> Path:
        return self.log(rank).with_suffix(".json")

    def _watch(self) -> None:
        while self.waiting:
            self._pass_on(self.waiting.pop(0))
        for rank, code in self.processes.ended():
            self.endings[rank] = read_ending(rank, code, self.note(rank))
        has_failed = any(ending.has_failed for ending in self.endings.values())
        # One that asks for a start may hang before it ends: the others wait for it.
        is_asked = any(asks_for_start(self.note(rank)) for rank in self.processes.alive)
        if self.kill_at is None and (has_failed or is_asked):
            self.kill_at = time.monotonic() + GRACE_SECONDS
        if self.kill_at is not None and time.monotonic() > self.kill_at:
            for rank, code in self.processes.end():
                ending = read_ending(rank, code, self.note(rank))
                self.endings[rank] = replace(ending, by_us=code == -signal.SIGKILL)

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGTSTP:
            return self.processes.pause()
        if number == signal.SIGHUP and self.sent is not None:
            return  # a terminal that closes may say so twice
        if self.sent is not None:
            self.kill_at = time.monotonic() + AT_ONCE_SECONDS
        self.sent = self.sent or number
        self.processes.send(number)

    def _starts_again(self, verdict: Verdict) -> bool:
        """Also tells what has happened."""
        if verdict.again:
            self.starts += 1
            echo(verdict.again, err=True)
            return True
        starts_again = verdict.can_be_tried_again and self.sent is None and self.restarts < self.max_restarts
        told = []
        if (guilty := verdict.guilty) is not None:
            told += message(guilty, self.nproc, self.log(guilty.rank))
            self.has_told = True
        if starts_again:
            told += [f"Restarting all ranks ({self.restarts + 1} of {self.max_restarts} restarts)."]
        elif told:
            told[0] = f"error: {told[0]}"
        if told:
            echo("\n".join(told), err=True)
        self.restarts += starts_again
        self.starts += starts_again
        return starts_again


def _threads(nproc: int) -> int:
    """A fair share of the cores that we may use."""
    return max(1, usable_cores() // nproc)
