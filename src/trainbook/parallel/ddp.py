"""Data parallel: every rank has all of the model and its part of the batch; gradients are added up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainbook.knobs.sections.distributed import Distributed
from trainbook.parallel.ranks import Ranks
from trainbook.parallel.single import SingleDevice


class DataParallel(SingleDevice):
    name = "ddp"

    def __init__(self, ranks: Ranks, knobs: Distributed) -> None:
        super().__init__(ranks)
        self.knobs = knobs
        self._wrapped: DistributedDataParallel | None = None

    def wrap(self, task: nn.Module) -> Callable[..., dict[str, Tensor]]:
        device = next(task.parameters()).device
        if self.knobs.sync_batch_norm:
            nn.SyncBatchNorm.convert_sync_batchnorm(task)
        self._wrapped = DistributedDataParallel(
            task,
            device_ids=[device.index] if device.type == "cuda" else None,
            find_unused_parameters=self.knobs.find_unused_parameters,
            bucket_cap_mb=self.knobs.bucket_mb,
            gradient_as_bucket_view=True,
        )
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


@torch.no_grad()
def bits_of(tensors: Iterable[Tensor]) -> int:
    """A number that changes with any one bit of them: their bytes added up, each tensor weighed by its place."""
    sums = [tensor.detach().contiguous().view(-1).view(torch.uint8).sum(dtype=torch.int64) for tensor in tensors]
    weighed = [total * (2 * place + 1) for place, total in enumerate(sums)]
    return int(torch.stack(weighed).sum()) if weighed else 0
