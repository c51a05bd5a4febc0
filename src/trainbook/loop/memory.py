"""When memory is not enough: the same step again, in smaller parts.

The global batch stays what it is, so that the training is the same; only more micro-batches are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from trainbook.errors import RunError
from trainbook.loop.heal import Healer, Log
from trainbook.loop.job import Job

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


class Memory:
    def __init__(self, job: Job, healer: Healer, log: Log) -> None:
        self.job, self.healer, self.log = job, healer, log

    def attempt(self, step: Callable[[], Found]) -> Found | None:
        """None: memory was not enough, and there is more of it now: the same step is to be tried again."""
        try:
            return step()
        except torch.OutOfMemoryError:
            pass  # with the exception go the frames that hold the tensors of the failed attempt
        _release()
        number = self.job.state.step + 1
        ranks = self.job.state.strategy.ranks
        if ranks.are_several:  # the others are in the middle of the step, and wait for this one
            raise RunError(f"rank {ranks.rank}: {OUT_OF_MEMORY.format(when=f'at step {number}')}")
        if self.healer.free_memory():
            self.log("oom", number, reason="copies of earlier states are moved to the host; the step is tried again")
            return None
        before, now = self.job.state.micro_batch, self.job.halve_batch()
        if now is None:
            when = f"at step {number}"
            raise RunError(
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
            ranks = self.job.state.strategy.ranks
            if ranks.are_several:
                raise RunError(f"rank {ranks.rank}: {OUT_OF_MEMORY.format(when='in an evaluation')}")
            if self.healer.free_memory():
                self.log("oom", reason="in an evaluation: copies of earlier states are moved to the host")
                continue
            rows = self.job.halve_evaluation()
            if rows is None:
                raise RunError(OF_NO_MORE_HELP.format(when="in an evaluation", rows="1 sequence"))
            self.log("oom", reason=f"in an evaluation: {rows} sequences at a time from here on", rows=rows)


def _release() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
