"""Worker processes of a study: their share of the machine, how they are asked to stop, and a pool of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from math import ceil
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from trainbook.errors import RunError, TrainbookError
from trainbook.runs.manifest import usable_cores
from trainbook.study.gpu_sharing import shared_gpu
from trainbook.supervisor import STOPS, Supervisor, python_module

# A worker is alone in its run: it must not take the place of whoever started it in another one for its own.
PLACES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
PREFIXES = ("SLURM_", "TORCHELASTIC_", "TRAINBOOK_NOTE", "PMI_", "OMPI_")

RUNS_PER_GPU = 16  # at most: small ones, each of which keeps a core busy
GIGABYTES_PER_RUN = 4  # of a GPU's memory; CUDA alone takes half of one

Given = TypeVar("Given")
Answer = TypeVar("Answer")


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


def automatic_workers(given: Mapping[str, str] = os.environ) -> int:
    """As many runs at a time as keep this machine busy: one for each core that we may use, since small models leave
    most of a GPU idle. A run whose memory is not enough beside others has the GPU to itself."""
    cores = usable_cores()
    if not (visible := devices(given)):
        return cores
    fit = min(RUNS_PER_GPU, max(1, int(least_gpu_gigabytes() // GIGABYTES_PER_RUN)))
    return max(len(visible), min(cores, fit * len(visible)))


def least_gpu_gigabytes() -> float:
    """Of this machine's GPUs; that of a small one where it cannot be asked for."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        return min(float(line) / 1024 for line in told.splitlines())
    except (OSError, subprocess.SubprocessError, ValueError):
        return 8.0


def workers_per_device(workers: int) -> int:
    """Of a GPU; or of the machine, where there is none."""
    return ceil(workers / max(1, len(devices())))


def sharing(workers: int) -> AbstractContextManager[dict[str, str]]:
    """What is added to the environment of so many workers, that they work side by side where they share a GPU."""
    return shared_gpu(workers_per_device(workers) if devices() else 1)


class Stopping:
    """How a worker is asked to stop, so that it is never lost: not in a training's last step, nor between two of them.

    A training has signal handlers of its own, and one that has just made its last step takes no notice of them. So
    whoever started us says it through our input, and every signal is also noted down here, whoever handles it.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._own = 0  # signals that we have sent to ourselves, and that ask for no more than the end of a training
        self._is_training = False

    def is_asked(self) -> bool:
        return self._asked.is_set()

    def listen(self) -> None:
        """From now on signals break into a training only, and are noted down otherwise. In the main thread."""
        heard, tells = os.pipe()
        os.set_blocking(tells, False)
        signal.set_wakeup_fd(tells)
        for number in STOPS:
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._note_signals, args=(heard,), name="signals", daemon=True).start()

    def follow(self, descriptor: int) -> None:
        """Stop when a signal's number is said there, or when whoever holds the other end is gone."""

        def watch() -> None:
            said = os.read(descriptor, 1)  # not sys.stdin, whose lock would be held when the interpreter ends
            self._asked.set()
            os.kill(os.getpid(), said[0] if said else signal.SIGTERM)

        threading.Thread(target=watch, name="parent watch", daemon=True).start()

    def interrupt(self) -> None:
        """End the training under way, saved; but not the worker."""
        self._own += 1
        os.kill(os.getpid(), signal.SIGTERM)

    def breaking_into(self, train: Callable[[Given], Answer]) -> Callable[[Given], Answer]:
        """The same function, into which a signal breaks where it has no handler of its own."""

        def training(given: Given) -> Answer:
            self._is_training = True
            try:
                if self.is_asked():  # since it was last looked at: no signal will break in
                    raise KeyboardInterrupt
                return train(given)
            finally:
                self._is_training = False

        return training

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_training:
            raise KeyboardInterrupt(signal.Signals(number).name)

    def _note_signals(self, heard: int) -> None:
        while numbers := os.read(heard, 64):
            for number in numbers:
                if number == signal.SIGTERM and self._own:
                    self._own -= 1
                elif number in STOPS:
                    self._asked.set()


# A function of many things, side by side


def side_by_side(
    function: Callable[[Given], Answer], things: Sequence[Given], workers: int
) -> Generator[tuple[int, Answer]]:
    """Places and answers as they come; `function` is one of a module, which each process imports.

    Nothing new begins after an error, and what is under way comes to its end. After Ctrl-C it is saved.
    """
    with sharing(min(workers, len(things))) as added:
        yield from _side_by_side(function, things, workers, added)


def _side_by_side(
    function: Callable[[Given], Answer], things: Sequence[Given], workers: int, added: Mapping[str, str]
) -> Generator[tuple[int, Answer]]:
    processes: Supervisor[Connection] = Supervisor()
    waiting = iter(enumerate(things))
    under_way: dict[Connection, int] = {}
    ready: set[Connection] = set()
    is_stopped = False

    def hand_out(line: Connection) -> None:
        if (following := next(waiting, None)) is not None:
            under_way[line] = following[0]
            with suppress(OSError):  # it is gone: that is seen when its answer is read
                line.send((function, following[1]))

    try:
        for number in range(min(workers, len(things))):
            hand_out(_started(processes, environment(number, workers, {**os.environ, **added})))
        while under_way:
            for line in wait(list(under_way)):
                assert isinstance(line, Connection)
                is_answer, answer = _received(line)
                if not is_answer:
                    ready.add(line)
                    continue
                place = under_way.pop(line)
                if isinstance(answer, BaseException):
                    raise answer
                hand_out(line)
                yield place, answer
    except (KeyboardInterrupt, GeneratorExit):
        if idle := set(processes.alive) - ready:  # nothing has begun there, and nothing is to be saved
            processes.kill(*idle)
        is_stopped = True
        raise
    finally:
        for line in processes.alive:
            line.close()
        _end(processes, is_stopped)


def _end(processes: Supervisor[Connection], is_stopped: bool) -> None:
    """They come to the end of what they are at, or after Ctrl-C save it; a second one kills them."""
    try:
        if not is_stopped:
            with suppress(KeyboardInterrupt):
                return processes.wait()
        processes.ask_to_stop(signal.SIGINT)
        processes.wait()
    finally:
        processes.end()


def _started(processes: Supervisor[Connection], given: Mapping[str, str]) -> Connection:
    ours, theirs = Pipe()
    with theirs:
        processes.start(
            ours,
            [*python_module(__name__), str(theirs.fileno())],
            given,
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
    return ours


def _received(line: Connection) -> tuple[bool, Any]:
    try:
        return line.recv()
    except (EOFError, OSError):
        raise RunError("a worker died. Finished runs are kept: run the same command again to resume.") from None


def main() -> None:
    """One of them: it reads what to do from a pipe, and answers there."""
    stopping = Stopping()
    stopping.listen()
    stopping.follow(0)
    import_module("trainbook.loop.build")  # PyTorch with it, into which no signal may break
    with Connection(int(sys.argv[1])) as line, suppress(EOFError, OSError):  # nobody is left to take the answer
        line.send((False, None))
        while not stopping.is_asked():
            function, given = line.recv()
            line.send((True, _answer(stopping.breaking_into(function), given)))


def _answer(function: Callable[[Given], Answer], given: Given) -> Answer | BaseException:
    try:
        return function(given)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, TrainbookError):
            error.add_note(traceback.format_exc())  # what is handed to another process has no traceback
        return error


if __name__ == "__main__":
    main()
