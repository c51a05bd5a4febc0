"""One run of a grid, and several of them: one after another, or in processes side by side."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from types import FrameType

from trainbook.errors import RunError
from trainbook.study.child_run import ChildRun
from trainbook.study.transfer.family import Arm


@dataclass(frozen=True)
class TransferCell:
    arm: Arm
    size: int
    rate: float
    seed: int  # counted from the configuration's own

    @property
    def name(self) -> str:
        return f"{self.arm.replace(' ', '-')}-{self.size}-rate-{self.rate:.6g}-seed-{self.seed}"


@dataclass(frozen=True)
class CellOutcome:
    loss: float | None  # of the last evaluation; None: it cannot be trained like this
    reason: str | None = None
    run: str | None = None


Train = Callable[[ChildRun], CellOutcome]
Asked = tuple[TransferCell, ChildRun]


def train_cell(child: ChildRun) -> CellOutcome:
    """One that diverges or has no room is an outcome like others; what is wrong with the question is raised."""
    ended, path = child.train(), str(child.run.path)
    if ended.failure is not None:
        return CellOutcome(None, f"diverged: {ended.reason}" if ended.failure == "diverged" else "out of memory", path)
    rows = child.run.metrics("eval")
    loss = rows[-1]["loss"] if rows else None
    if loss is None or not math.isfinite(loss):
        return CellOutcome(None, f"its loss is {loss}", path)
    return CellOutcome(loss, None, path)


def in_turn(asked: Sequence[Asked], train: Train, workers: int = 1) -> Iterator[tuple[TransferCell, CellOutcome]]:
    """As they end. With several workers, `train` is a function of a module, which each process imports."""
    if workers == 1 or len(asked) < 2:
        for cell, child in asked:
            yield cell, train(child)
        return
    waiting = iter(asked)
    under_way: dict[Future[CellOutcome], TransferCell] = {}
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    any_is_ready = context.Event()
    with ProcessPoolExecutor(workers, context, _prepare, (workers, any_is_ready)) as pool:

        def start_one() -> None:
            # No more than there are workers: what lies in the pool's own queue can no longer be taken back.
            if (each := next(waiting, None)) is not None:
                with _ctrl_c_later():
                    under_way[pool.submit(_trained_by_worker, train, each[1])] = each[0]

        try:
            for _ in range(workers):
                start_one()
            while under_way:
                for run in wait(under_way, return_when=FIRST_COMPLETED).done:
                    cell, outcome = under_way.pop(run), run.result()
                    start_one()
                    yield cell, outcome
        except BrokenProcessPool:
            raise RunError("a worker died. Finished runs are kept: run the same command again to resume.") from None
        except KeyboardInterrupt:
            if not any_is_ready.is_set():  # nothing has begun, and nothing is to be saved
                for each in set(multiprocessing.active_children()) - others:
                    each.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)  # after Ctrl-C, each saves what it is at


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """A process that is started in here is deaf to it, until `_prepare`: Python's own answer would be a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In a worker


class _Interruption:
    """Ctrl-C reaches all processes. A run saves itself; what has not come so far ends; nothing begins after it."""

    is_asked = False
    has_run = False

    def hear(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True
        if self.has_run:
            raise KeyboardInterrupt


_interruption = _Interruption()


def _trained_by_worker(train: Train, child: ChildRun) -> CellOutcome:
    _interruption.has_run = True
    try:
        if _interruption.is_asked:
            raise KeyboardInterrupt
        return train(child)
    finally:
        _interruption.has_run = False
        if (parent := multiprocessing.parent_process()) is not None and not parent.is_alive():
            os._exit(1)  # nobody is left to take the answer; what is saved will be found


def _prepare(workers: int, any_is_ready: Event) -> None:
    any_is_ready.set()
    signal.signal(signal.SIGINT, _interruption.hear)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # one that came since the start is heard now
    threading.Thread(target=_end_with_parent, name="parent watch", daemon=True).start()
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


def _end_with_parent() -> None:
    """A run saves itself, and gives back the device: whoever goes on with the study needs both."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
