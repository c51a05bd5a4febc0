"""Data parallel: every rank has the whole model and its part of the batch; gradients are summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from trainbook.knobs.sections.distributed import DistributedKnobs
from trainbook.parallel.ranks import Ranks
from trainbook.parallel.strategy import Compile, Losses, Strategy

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class DataParallel(Strategy):
    name = "ddp"
    can_begin_anew = False  # the reducer is in the middle of its buckets; FSDP2 keeps whole gradients to itself

    def __init__(self, ranks: Ranks, knobs: DistributedKnobs) -> None:
        super().__init__(ranks)
        self.knobs = knobs
        self._wrapped: DistributedDataParallel | None = None

    @property
    def reduce_dtype(self) -> torch.dtype | None:
        """None where there is nothing to add up."""
        return DTYPES[self.knobs.reduce_dtype] if self.ranks.are_several else None

    def wrap(self, task: nn.Module, compiled: Compile | None = None, cast_to: torch.dtype | None = None) -> Losses:
        device = next(task.parameters()).device
        if self.knobs.sync_batch_norm:
            nn.SyncBatchNorm.convert_sync_batchnorm(task)
        if compiled is not None:
            task.forward = compiled(task.forward)  # inside: what DDP does around it is no part of the graph
        self._wrapped = DistributedDataParallel(
            task,
            device_ids=[device.index] if device.type == "cuda" else None,
            find_unused_parameters=self.knobs.find_unused_parameters,
            bucket_cap_mb=self.knobs.bucket_mb,
            gradient_as_bucket_view=True,
        )
        trained = {parameter.dtype for parameter in task.parameters() if parameter.requires_grad}
        if self.reduce_dtype is not None and trained != {self.reduce_dtype}:
            # DDP wants a hook's types to be the very objects, or none: not names of them, as they are in this file.
            how = (self.reduce_dtype, self.ranks.world)
            self._wrapped.register_comm_hook(how, lambda state, bucket: mean_in(state, bucket))
        if compiled is not None and not self.ranks.are_several:
            return _in_one_graph(self._wrapped)
        return self._wrapped

    def total(self, number: int, device: torch.device) -> Tensor:
        counted = torch.full((), float(number), dtype=torch.float64, device=device)  # a fill: the host does not wait
        return self.ranks.add_up(counted).clamp_(min=1)

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.ranks.world  # DDP takes the mean over ranks

    def sync_gradients(self, is_last: bool) -> AbstractContextManager:
        return nullcontext() if is_last or self._wrapped is None else self._wrapped.no_sync()

    def own_seconds(self) -> float | None:
        assert self._wrapped is not None
        measured = self._wrapped._get_ddp_logging_data()  # in nanoseconds, on average over the steps that DDP has timed
        parts = [measured.get(f"avg_{name}_compute_time", 0) for name in ("forward", "backward")]
        return sum(parts) / 1e9 if all(parts) else None

    def fingerprint(self) -> tuple[int, int] | None:
        assert self._wrapped is not None
        return (0, bits_of(self._wrapped.parameters())) if self.ranks.are_several else None

    def agree_on(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        together = self.ranks.add_up(torch.stack([loss.double() for loss in losses.values()]))
        return {name: loss.to(losses[name].dtype) for name, loss in zip(losses, together.unbind(), strict=True)}


def mean_in(how: tuple[torch.dtype, int], bucket: GradBucket) -> Future[Tensor]:
    """Exchange gradients in another type than theirs; divided first, so that 16 bits are not asked to hold the sum."""
    dtype, world = how
    gradients = bucket.buffer()
    sent = gradients.to(torch.promote_types(gradients.dtype, dtype)).div(world).to(dtype)
    sending = dist.all_reduce(sent, async_op=True)
    assert sending is not None
    return sending.get_future().then(lambda sum_of_all: gradients.copy_(sum_of_all.value()[0]))


def _in_one_graph(wrapped: nn.Module) -> Callable[..., dict[str, Tensor]]:
    """torch.compile cuts the graph of a DDP module at each bucket, so that sending overlaps the backward pass. With one
    process nothing is sent, and the cuts would only cost."""

    def call(**inputs: Any) -> dict[str, Tensor]:
        with torch._dynamo.config.patch(optimize_ddp=False):
            return wrapped(**inputs)

    return call


@torch.no_grad()
def bits_of(tensors: Iterable[Tensor]) -> int:
    """A number that changes with any one bit of them: their bytes added up, each tensor weighed by its place."""
    sums = [tensor.detach().contiguous().view(-1).view(torch.uint8).sum(dtype=torch.int64) for tensor in tensors]
    weighed = [total * (2 * place + 1) for place, total in enumerate(sums)]
    return int(torch.stack(weighed).sum()) if weighed else 0
