"""Out of memory: the same step again, with smaller micro-batches.

The global batch stays what it is, so that the training is the same; only more micro-batches are added up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from trainbook.errors import OutOfMemory
from trainbook.loop.guard_actions import GuardActions, Log
from trainbook.loop.job import Job
from trainbook.loop.shortage import Kind, Shortage
from trainbook.parallel.exit_status import ask_to_start_again

Found = TypeVar("Found")

OUT_OF_MEMORY = (
    "the GPU ran out of memory {when}. Saved checkpoints are kept. Try, in this order: a smaller "
    "batch.per_device_train_batch_size with the same batch.global_batch_size (same training, less memory); "
    "memory.gradient_checkpointing=selective or full; precision.compute=bf16; a smaller data.max_seq_length."
)
OF_NO_MORE_HELP = (
    "the GPU ran out of memory {when}, with a batch of {rows}. Saved checkpoints are kept. Try, in this order: "
    "memory.gradient_checkpointing=selective or full; precision.compute=bf16; a smaller data.max_seq_length."
)
AGAIN = "Resume the run: it continues from its newest checkpoint, in batches of {rows}, with the same results."


class OutOfMemoryRetry:
    def __init__(self, job: Job, healer: GuardActions, log: Log, shortage_file: Path | None = None) -> None:
        self.job, self.healer, self.log = job, healer, log
        self.shortage_file = shortage_file

    def attempt(self, step: Callable[[], Found]) -> Found | None:
        """None: the step ran out of memory, some was freed, and the caller should retry the same step."""
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
            self.log("oom", number, reason="out of memory: snapshots were moved to host memory; retrying the step")
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
            reason=f"out of memory with a micro-batch of {before}: retrying with {now} and the same global batch. "
            "If that is too slow, try memory.gradient_checkpointing=selective or precision.compute=bf16",
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
                self.log("oom", reason="out of memory in an evaluation: snapshots were moved to host memory")
                continue
            rows = self.job.halve_evaluation()
            if rows is None:
                raise OutOfMemory(OF_NO_MORE_HELP.format(when="in an evaluation", rows="1 sequence"))
            self.log("oom", reason=f"out of memory in an evaluation: batches of {rows} from here on", rows=rows)

    def _out_of_memory(self, kind: Kind, step: int, before: int | None, rows: int | None) -> OutOfMemory:
        """One of several ranks ran out of memory; the others wait for it in the middle of the step."""
        rank = self.job.state.strategy.ranks.rank
        when = f"at step {step}" if kind == "training" else "in an evaluation"
        if rows is None or self.shortage_file is None:
            text = OF_NO_MORE_HELP if rows is None and before != 0 else OUT_OF_MEMORY
            return OutOfMemory(f"rank {rank}: {text.format(when=when, rows='1 sequence')}")
        shortage = Shortage(kind, step, rank, rows, before)
        shortage.keep(self.shortage_file)
        is_heard = ask_to_start_again(f"{shortage.told}.", f"in batches of {rows}, with the same results")
        return OutOfMemory(f"{shortage.told}. Saved checkpoints are kept. {AGAIN.format(rows=rows)}", is_heard=is_heard)


def _release() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
