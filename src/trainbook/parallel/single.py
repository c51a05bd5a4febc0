"""One device: nothing to agree on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from trainbook.parallel.ranks import ALONE, Ranks


class SingleDevice:
    """Also what every strategy is, but for what it does differently."""

    name = "single"

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks

    def wrap(self, task: nn.Module) -> Callable[..., dict[str, Tensor]]:
        """What is called in place of the task, so that its gradients are exchanged."""
        return task

    def total(self, number: int, device: Any) -> int | Tensor:
        """The sum of a number over ranks, at least 1; where it takes an exchange, still on the device."""
        return max(1, number)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss whose gradient, once it is exchanged, is that of the sum over ranks."""
        return loss

    def sync_gradients(self, is_last: bool) -> AbstractContextManager:
        """Around forward and backward of a micro-batch: only the last of a step exchanges gradients."""
        return nullcontext()

    def agree_on(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each rank's share of the losses becomes the whole."""
        return losses

    def whole(self) -> AbstractContextManager:
        """Around what is computed with the model beside its steps, where ranks may not be in step with each other."""
        return nullcontext()

    def own_seconds(self) -> float | None:
        """What this rank computes in a step, without its waiting for others; None where nobody measures it."""
        return None

    def fingerprint(self) -> tuple[int, int] | None:
        """Ranks that give the same first number hold the same weights, and so give the same second one."""
        return None

    # What the optimizer works on

    def slices_of(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Parameter groups as this rank's optimizer has them."""
        return groups

    def collect_gradients(self) -> None:
        """Bring them to what the optimizer works on."""

    def drop_gradients(self) -> None:
        """Those of the model, once the optimizer's are gone."""

    def norms_over_ranks(self, norms: Tensor) -> Tensor:
        """Of whole tensors, from those of the parts that ranks hold."""
        return norms

    # What a rank holds, and the whole that a checkpoint keeps. All ranks must ask together.

    def whole_model(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return state

    def own_model(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return state

    def whole_optimizer(self, state: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
        return state

    def own_optimizer(self, state: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
        return state

    def held_model(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """This rank's part of the model in plain tensors, for a copy in memory; `from_held` is the way back."""
        return state

    def from_held(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return state
