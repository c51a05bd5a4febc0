"""When memory is not enough: the same step again, in smaller parts.

The global batch stays what it is, so that the training is the same; only more micro-batches are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from trainbook.errors import OutOfMemory
from trainbook.loop.heal import Healer, Log
from trainbook.loop.job import Job
from trainbook.loop.shortage import Kind, Shortage
from trainbook.parallel.endings import ask_to_start_again

Found = TypeVar("Found")

OUT_OF_MEMORY = (
    "the GPU ran out of memory {when}. Nothing saved is lost. In this order, try: a smaller "
    "batch.per_device_train_batch_size with batch.global_batch_size kept (same training, less memory); "
    "memory.gradient_checkpointing=selective or full; precision.compute=bf16; a smaller data.max_seq_length."
)
OF_NO_MORE_HELP = (
    "the GPU ran out of memory {when}, with {rows} at a time. Nothing saved is lost. In this order, try: "
    "memory.gradient_checkpointing=selective or full; precision.compute=bf16; a smaller data.max_seq_length."
)
AGAIN = "Start the same run again: it goes on from its newest checkpoint, with {rows} at a time and the same results."


class Memory:
    def __init__(self, job: Job, healer: Healer, log: Log, shortage_file: Path | None = None) -> None:
        self.job, self.healer, self.log = job, healer, log
        self.shortage_file = shortage_file

    def attempt(self, step: Callable[[], Found]) -> Found | None:
        """None: memory was not enough, and there is more of it now: the same step is to be tried again."""
        try:
            return step()
        except torch.OutOfMemoryError:
            pass  # with the exception go the frames that hold the tensors of the failed attempt
        _release()
        number = self.job.state.step + 1
        strategy = self.job.state.strategy
        if strategy.ranks.are_several or not strategy.can_begin_anew:
            raise self._out_of_memory("training", number, self.job.state.micro_batch, self.job.halve_batch())
        if self.healer.free_memory():
            self.log("oom", number, reason="copies of earlier states are moved to the host; the step is tried again")
            return None
        before, now = self.job.state.micro_batch, self.job.halve_batch()
        if now is None:
            when = f"at step {number}"
            raise OutOfMemory(
                OF_NO_MORE_HELP.format(when=when, rows="1 sequence") if before == 1 else OUT_OF_MEMORY.format(when=when)
            )
        self.log(
            "oom",
            number,
            reason=f"{before} sequences at a time are too many: {now} from here on, with the same global batch. "
            "The step is tried again. If that is too slow: memory.gradient_checkpointing=selective, "
            "precision.compute=bf16",
            rows_before=before,
            rows=now,
        )
        return None

    def evaluate(self, evaluation: Callable[[], Found]) -> Found:
        while True:
            try:
                return evaluation()
            except torch.OutOfMemoryError:
                pass
            _release()
            if self.job.state.strategy.ranks.are_several:
                raise self._out_of_memory("evaluation", self.job.state.step, None, self.job.halve_evaluation())
            if self.healer.free_memory():
                self.log("oom", reason="in an evaluation: copies of earlier states are moved to the host")
                continue
            rows = self.job.halve_evaluation()
            if rows is None:
                raise OutOfMemory(OF_NO_MORE_HELP.format(when="in an evaluation", rows="1 sequence"))
            self.log("oom", reason=f"in an evaluation: {rows} sequences at a time from here on", rows=rows)

    def _out_of_memory(self, kind: Kind, step: int, before: int | None, rows: int | None) -> OutOfMemory:
        """On one of several ranks. The others are in the middle of the step, and wait for it."""
        rank = self.job.state.strategy.ranks.rank
        when = f"at step {step}" if kind == "training" else "in an evaluation"
        if rows is None or self.shortage_file is None:
            text = OF_NO_MORE_HELP if rows is None and before != 0 else OUT_OF_MEMORY
            return OutOfMemory(f"rank {rank}: {text.format(when=when, rows='1 sequence')}")
        shortage = Shortage(kind, step, rank, rows, before)
        shortage.keep(self.shortage_file)
        is_heard = ask_to_start_again(f"{shortage.told}.", f"with {rows} at a time and the same results")
        return OutOfMemory(f"{shortage.told}. Nothing saved is lost. {AGAIN.format(rows=rows)}", is_heard=is_heard)


def _release() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
