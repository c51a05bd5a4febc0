"""The strategy for one device, without communication: the base of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainbook.parallel.ranks import ALONE, Ranks

# Slices of tensors, as ranks and checkpoints hold them: for saving and loading a sharded state.


@dataclass(frozen=True)
class Slice:
    """A rectangular slice of a larger tensor. Ranks that hold the same slice hold the same values."""

    values: Tensor
    offsets: tuple[int, ...]  # where the box begins
    whole: torch.Size  # the shape of the larger tensor


@runtime_checkable
class Unread(Protocol):
    """A tensor on disk: each rank reads the slice that it needs."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def ndim(self) -> int: ...

    def read(self, offsets: Sequence[int] | None = None, sizes: Sequence[int] | None = None) -> Tensor:
        """The slice that begins at `offsets`; the whole tensor by default."""
        ...


def read_whole(value: Any) -> Any:
    """Read a tensor that is on disk; return anything else as it is."""
    return value.read() if isinstance(value, Unread) else value


Losses = Callable[..., dict[str, Tensor]]
Update = Callable[[Optimizer, Tensor], None]  # of all that the optimizer has, if the tensor says so
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


class Strategy:
    """How a step is computed over the devices. This one has a single device; the others override what they do
    differently."""

    name = "single"
    can_begin_anew = True  # a step that failed halfway: nothing of it is left where nobody can drop it
    has_engine = False  # that updates: it never applies what is not finite

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks

    def wrap(self, task: nn.Module, compiled: Compile | None = None, cast_to: torch.dtype | None = None) -> Losses:
        """What is called in place of the task, so that its gradients are exchanged.

        `compiled` makes a fast function of a function; `cast_to` is the type that autocast computes in, if it does.
        """
        return task if compiled is None else compiled(task)

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

    def in_step(self) -> AbstractContextManager:
        """Around passes beside the training steps that all ranks make equally often."""
        return self.whole()

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

    def gradients(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        """What this rank has of them, once they are collected."""
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def gradient_norm(self) -> Tensor | None:
        """Of all gradients, if the strategy clips them itself as it updates; None: they are ours to clip."""
        return None

    def update(self, apply_update: Update, optimizer: Optimizer, apply: Tensor) -> None:
        """At once, or when an engine that owns the update asks for it."""
        apply_update(optimizer, apply)

    def drop_gradients(self, optimizer: Optimizer) -> None:
        optimizer.zero_grad(set_to_none=True)

    def norms_over_ranks(self, norms: Tensor) -> Tensor:
        """Of whole tensors, from those of the parts that ranks hold."""
        return norms

    def size_of_whole(self, parameter: Tensor) -> int:
        return parameter.numel()

    # What a checkpoint keeps, and what this rank holds of it. All ranks must ask together.

    reads_slices = False  # own_* are given what lies on the disk (`Unread`), and not whole tensors

    def whole_model(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor | Slice]:
        """Whole tensors, which the first rank writes; or slices that are the whole together, each written by its rank.

        All ranks must have slices of the same tensors.
        """
        return state

    def own_model(self, state: Mapping[str, Any]) -> Mapping[str, Tensor]:
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
