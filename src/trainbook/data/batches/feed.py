"""Batches made ahead of time, in worker processes if asked. The only file of this package that needs torch."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from trainbook.data.batches.filling import Batch
from trainbook.data.batches.plan import BatchPlan


def prefetch(
    plan: BatchPlan,
    collate: Callable[[Batch], Any],
    start_step: int = 0,
    stop_step: int | None = None,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    pin_memory: bool = False,
    rank: int = 0,
    world: int = 1,
) -> Generator[Any]:
    """Yield `collate(plan.batch(step, rank, world))` for each step from start_step up to, not including, stop_step.

    What was prepared and not taken is forgotten: to resume, ask for the first step that was not trained on. Closing the
    iterator ends the workers.
    """
    steps = range(start_step, sys.maxsize if stop_step is None else stop_step)
    loader = DataLoader(
        _Steps(plan, collate, rank, world),
        batch_size=None,
        sampler=steps,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor if num_workers > 0 else None,
        pin_memory=pin_memory and torch.cuda.is_available(),
        worker_init_fn=_start_worker,
        # The loader draws a seed for its workers; from the global generator, that would shift every later dropout mask.
        generator=torch.Generator(),
    )
    for item in _start(loader):
        if isinstance(item, _Failure):
            raise item.error()
        yield item


class _Steps(Dataset[Any]):
    def __init__(self, plan: BatchPlan, collate: Callable[[Batch], Any], rank: int, world: int) -> None:
        self.plan, self.collate, self.rank, self.world = plan, collate, rank, world

    def __getitem__(self, index: int) -> Any:
        try:
            # Of a batch with fewer samples than there are ranks, those without one compute along on the first rank's.
            rank = self.rank if self.plan.share(index, self.rank, self.world) else 0
            return self.collate(self.plan.batch(index, rank, self.world))
        except Exception as error:
            if get_worker_info() is None:
                raise
            return _Failure(type(error), str(error), traceback.format_exc())


@dataclass
class _Failure:
    """An error as a worker tells it. Raised in the worker, it would arrive with a traceback for its message."""

    kind: type[Exception]
    message: str
    trace: str

    def error(self) -> Exception:
        # Not by calling the class: its constructor may take other things than a message.
        error = self.kind.__new__(self.kind, self.message)
        error.add_note(f"In a data loader worker:\n{self.trace}")
        return error


# Ctrl-C and a scheduler's SIGTERM reach the whole process group. It is for the main process to answer them: it needs
# its workers alive until it has saved. A worker ends when the main process itself says so, at the latest at its exit.
_TELLS_SENDER = hasattr(signal, "sigwaitinfo")
_HELD = {signal.SIGINT, signal.SIGTERM}


def _start(loader: DataLoader[Any]) -> Iterator[Any]:
    """Start the workers with both signals held back, so that none can strike before a worker has prepared for it."""
    if not _TELLS_SENDER:
        return iter(loader)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _TELLS_SENDER:
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        threading.Thread(target=_end_when_the_main_process_says_so, daemon=True).start()
    # Threads of a tokenizer do not survive a fork.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _end_when_the_main_process_says_so() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
