"""Starts several processes on this machine with torch's elastic agent; on the terminal they behave as one program.

What the agent does by itself, and what is done here instead:

- It starts each process in a session of its own: Ctrl-C on the terminal reaches the launcher alone, which passes on
  every signal, once.
- Its own handlers answer a signal by giving the processes 30 seconds, and then kill them. Here they have all the time
  that saving takes, until the user asks a second time.
- Once one process has left with anything but 0, it sends SIGTERM to the others. To a rank that is still saving after
  Ctrl-C that is the second signal, "at once"; to one that is about to say what is wrong, an interruption. So the agent
  hears of an end only when all have ended; those that another one's failure leaves hanging are killed here.
- It starts all again after any failure, also after a mistake of the user's and after Ctrl-C. Not here.
- A start that the ranks ask for themselves, in less memory, is not counted as one of those after a failure.
- With one address for all starts, ranks that are started again find the addresses of those that are gone.
- It puts a rank's number in place of ${local_rank} in arguments, and $ in place of $$. Here they arrive as they are.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from trainbook.errors import RunError
from trainbook.parallel.exit_status import LOG, NOTE, ExitStatus, Verdict, asks_for_start, judge, message, read_ending
from trainbook.terminal import echo

ADDRESS = "127.0.0.1"
GRACE_SECONDS = 10.0  # for the others, once one has failed: to end by themselves, and to say why
AT_ONCE_SECONDS = 3.0  # once the user has asked a second time
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_processes(command: Sequence[str], nproc: int, *, max_restarts: int = 0) -> int:
    """Run a command as `nproc` ranks and return the overall exit code; failures are reported on stderr.

    The first rank has the terminal. The output of the others goes to a folder, which is named if one of them fails.
    """
    folder = Path(tempfile.mkdtemp(prefix="trainbook-ranks-"))
    sys.stdout.flush()
    sys.stderr.flush()
    spec = WorkerSpec(
        role="rank",
        local_world_size=nproc,
        rdzv_handler=Rendezvous(),
        entrypoint=command[0],
        args=tuple(argument.replace("$", "$$") for argument in command[1:]),
        max_restarts=max_restarts,
    )
    agent = Agent(spec, RankFiles(folder))
    try:
        with _quiet_agent(), agent.signals:
            agent.run()
    except OSError as error:
        raise RunError(f"the {nproc} processes could not be started: {error}") from error
    finally:
        agent.kill_all()
        if not agent.has_told:
            shutil.rmtree(folder, ignore_errors=True)
    return agent.verdict.code


class Rendezvous(StaticTCPRendezvous):
    """A new store at a free port for each start: launches at the same time do not meet, nor old ranks and new ones."""

    def __init__(self) -> None:
        super().__init__(ADDRESS, 0, rank=0, world_size=1, run_id=uuid.uuid4().hex, timeout=60)

    def next_rendezvous(self) -> RendezvousInfo:
        # Port 0: the system chooses one that is free, and the store keeps it.
        self._store = store = TCPStore(ADDRESS, 0, world_size=1, is_master=True, wait_for_workers=False)
        return RendezvousInfo(PrefixStore(self.run_id, store), 0, 1, RendezvousStoreInfo(ADDRESS, store.port))


class RankFiles(LogsSpecs):
    """Where each rank's output goes, and what its environment says besides."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self.folder = folder
        self.start = 0  # how often all were started again, for whatever reason

    @property
    def root_log_dir(self) -> str:
        return str(self.folder)

    def log(self, rank: int) -> Path:
        return self.folder / (f"rank-{rank}-restart-{self.start}.log" if self.start else f"rank-{rank}.log")

    def note(self, rank: int) -> Path:
        return self.log(rank).with_suffix(".json")

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        where = LogsDest(filtered_stdout=os.devnull, filtered_stderr=os.devnull)
        for rank, environment in envs.items():
            log = self.log(rank)
            environment[LOG], environment[NOTE] = str(log), str(self.note(rank))
            environment["TORCHELASTIC_RESTART_COUNT"] = str(self.start)
            environment.setdefault("OMP_NUM_THREADS", str(_threads(len(envs))))
            environment["TORCHELASTIC_ERROR_FILE"] = ""
            where.error_files[rank] = os.devnull
            # An empty name is the terminal. Two files for the others: the agent would write one over the other.
            where.stdouts[rank] = "" if rank == 0 else str(log.with_suffix(".out"))
            where.stderrs[rank] = "" if rank == 0 else str(log)
        return where


def _threads(nproc: int) -> int:
    """A fair share of the cores that we may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // nproc)


class Signals:
    """Those that came, until they are passed on. A hang-up that is to be ignored, as under nohup, stays so."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (*PASSED_ON, signal.SIGTSTP):
                if number in (signal.SIGHUP, signal.SIGTSTP) and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._previous[number] = signal.signal(number, lambda number, frame: self.waiting.append(number))
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class Agent(LocalElasticAgent):
    """Tells the agent that all is well until all ranks have ended."""

    def __init__(self, spec: WorkerSpec, files: RankFiles) -> None:
        super().__init__(spec, files, exit_barrier_timeout=10)
        self.spec, self.files = spec, files
        self.signals = Signals()
        self.sent: int | None = None  # the first signal that was passed on
        self.endings: dict[int, ExitStatus] = {}
        self.kill_at: float | None = None
        self.verdict = Verdict(1)
        self.has_told = False
        self.restarts = 0

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.endings, self.kill_at = {}, None
        return super()._start_workers(worker_group)  # pyright: ignore[reportCallIssue]

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._pass_on_signals()
        for rank, process in self._processes().items():
            if rank not in self.endings and (code := process.poll()) is not None:
                if code < 0:  # data workers that it left hold its connections open, and others wait for it on those
                    _to_group(process, signal.SIGKILL)
                self._note(read_ending(rank, code, self.files.note(rank)))
        if self.kill_at is None and any(asks_for_start(self.files.note(rank)) for rank in self._alive()):
            self.kill_at = time.monotonic() + GRACE_SECONDS  # it may hang before it ends: the others wait for it
        if self._alive() and self.kill_at is not None and time.monotonic() > self.kill_at:
            self.kill_all()
        if self._alive():
            return RunResult(state=WorkerState.HEALTHY)
        self._close_logs()
        result = super()._monitor_workers(worker_group)  # pyright: ignore[reportCallIssue]
        self._judge()
        return result

    def _note(self, ending: ExitStatus) -> None:
        self.endings[ending.rank] = ending
        if ending.has_failed and self.kill_at is None:
            self.kill_at = time.monotonic() + GRACE_SECONDS

    def _judge(self) -> None:
        self.verdict = judge(list(self.endings.values()), self.sent)
        if self.verdict.again:
            self._remaining_restarts += 1  # it takes one off for each start
            self.files.start += 1
            echo(self.verdict.again, err=True)
            return
        is_tried_again = self.verdict.can_be_tried_again and self.sent is None and self._remaining_restarts > 0
        if not is_tried_again:
            self._remaining_restarts = 0
        told = []
        if (guilty := self.verdict.guilty) is not None:
            log = self.files.log(guilty.rank)
            told += message(guilty, self.spec.local_world_size, log)
            self.has_told = True
        if is_tried_again:
            told += [f"Restarting all ranks ({self.restarts + 1} of {self.spec.max_restarts} restarts)."]
        elif told:
            told[0] = f"error: {told[0]}"
        if told:
            echo("\n".join(told), err=True)
        self.restarts += is_tried_again
        self.files.start += is_tried_again

    def _pass_on_signals(self) -> None:
        """Only to the ranks themselves: what they started ends with them."""
        while self.signals.waiting:
            number = self.signals.waiting.pop(0)
            if number == signal.SIGTSTP:
                self._pause()
                continue
            if number == signal.SIGHUP and self.sent is not None:
                continue  # a terminal that closes may say so twice
            if self.sent is not None:
                self.kill_at = time.monotonic() + AT_ONCE_SECONDS
            self.sent = self.sent or number
            for process in self._alive().values():
                process.send_signal(number)

    def _pause(self) -> None:
        """Ctrl-Z, until the shell says to go on."""
        self._to_groups(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._to_groups(signal.SIGCONT)

    def kill_all(self) -> None:
        self._to_groups(signal.SIGKILL)
        for rank, process in self._alive().items():
            code = process.wait()
            ending = read_ending(rank, code, self.files.note(rank))
            self.endings[rank] = replace(ending, by_us=code == -signal.SIGKILL)

    def _to_groups(self, number: int) -> None:
        for process in self._alive().values():
            _to_group(process, number)

    def _close_logs(self) -> None:
        """The agent does so only for those that it has ended itself."""
        for handler in getattr(self._pcontext, "subprocess_handlers", {}).values():
            for stream in (handler._stdout, handler._stderr):
                if stream is not None:
                    stream.close()

    def _processes(self) -> dict[int, Any]:
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return {rank: handler.proc for rank, handler in handlers.items()}

    def _alive(self) -> dict[int, Any]:
        return {rank: process for rank, process in self._processes().items() if rank not in self.endings}


def _to_group(process: Any, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def _quiet_agent() -> Iterator[None]:
    """It logs what we tell ourselves, and would put handlers of its own in place of ours."""
    name, disabled = "TORCHELASTIC_SIGNALS_TO_HANDLE", logging.root.manager.disable
    before = os.environ.get(name)
    os.environ[name] = ""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
