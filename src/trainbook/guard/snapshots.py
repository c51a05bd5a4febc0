"""Recent training states in memory, for rollbacks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from trainbook.guard.decisions import Suspicion

SHARE_OF_DEVICE = 0.1  # of its memory, that snapshots may take
FROM_DEVICE_TO_HOST = 10  # copies to the host take long: so many times rarer


class SnapshotRing:
    """The last few snapshots, and one more: the newest up to a step that is known to be good."""

    def __init__(self, size: int = 3, device: torch.device | None = None) -> None:
        """`device`: where copies are kept; None: on the device of each tensor."""
        self.size, self.device = size, device
        self._kept: dict[int, Any] = {}

    @property
    def steps(self) -> list[int]:
        return sorted(self._kept)

    def take(self, step: int, state: Mapping[str, Any], *, spare: int | None = None) -> None:
        """Keep a copy and drop older ones, except the newest one up to step `spare`."""
        self._kept[step] = copied(state, self.device)
        spared = max((known for known in self._kept if spare is not None and known <= spare), default=None)
        others = [known for known in self.steps if known != spared]
        for known in others[: max(0, len(others) - self.size)]:
            del self._kept[known]

    def newest(self, at_most: int) -> tuple[int, Any] | None:
        fitting = [step for step in self._kept if step <= at_most]
        return (max(fitting), self._kept[max(fitting)]) if fitting else None

    def newest_or_oldest(self, at_most: int) -> tuple[int, Any] | None:
        """The newest up to a step; if there is none, the oldest of all."""
        return self.newest(max(at_most, min(self._kept, default=0)))

    def forget_after(self, step: int) -> None:
        self._kept = {known: state for known, state in self._kept.items() if known <= step}

    @property
    def bytes(self) -> int:
        return size_of(self._kept)

    def moved_to(self, device: torch.device) -> SnapshotRing:
        """Moved one by one, so there are never two copies of all of them."""
        moved = SnapshotRing(self.size, device)
        for step in self.steps:
            moved._kept[step] = copied(self._kept.pop(step), device)
        return moved


def copied(value: Any, device: torch.device | None = None) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone() if device is None else value.detach().to(device, copy=True)
    if isinstance(value, Mapping):
        return {key: copied(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [copied(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def size_of(value: Any) -> int:
    """Bytes of the tensors in it."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(size_of(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(size_of(item) for item in value)
    return 0


def fits_on_device(size: int, device: torch.device) -> bool:
    """Whether snapshots of so many bytes may lie beside the model on a GPU."""
    return size <= SHARE_OF_DEVICE * torch.cuda.get_device_properties(device).total_memory


# A trial of two states: is the model worse than it was, or has the data changed?


BATCHES = 4  # that the earlier state is given, at most
ENOUGH = 2  # of them, where losses differ by far more from state to state than from batch to batch
FAR = 4.0  # times the spread within a state
MOST = 0.5  # of what the loss has risen by


@dataclass
class StateTrial:
    present: dict[str, Any]  # states of the guarded objects
    earlier: dict[str, Any]
    target: int  # the step of the earlier one
    suspicion: Suspicion
    of_present: list[float] = field(default_factory=list)  # losses
    of_earlier: list[float] = field(default_factory=list)
    is_earlier: bool = True  # whose turn it is

    @property
    def most(self) -> float:
        """What the data costs a state that is better."""
        trouble = self.suspicion.trouble
        return trouble.usual + MOST * (trouble.now - trouble.usual)

    def go_on_with(self, target: int, earlier: dict[str, Any]) -> None:
        """An older state; the run goes back to it if the present one is worse."""
        self.target, self.earlier, self.of_earlier = target, earlier, []
        self.suspicion = replace(self.suspicion, trouble=replace(self.suspicion.trouble, healthy_at=target))

    @property
    def is_worse(self) -> bool | None:
        """Whether the present state is; None: it is not known yet."""
        # What is not a number is the worst loss, whichever state has it.
        earlier, present = (
            [loss if math.isfinite(loss) else math.inf for loss in losses]
            for losses in (self.of_earlier, self.of_present)
        )
        if earlier and (max(earlier) >= min(present) or max(earlier) >= self.most):
            return False
        if not self.suspicion.trouble.is_of_the_model:
            return True if len(earlier) == BATCHES else None
        within = max(_spread(earlier), _spread(present))
        if not earlier or (within > 0 and len(earlier) < ENOUGH):
            return None
        is_clear = min(present) - max(earlier) > FAR * within  # NaN is False: of two infinite losses nothing is known
        return True if is_clear or len(earlier) == BATCHES else None

    def cost(self, loss: float, grad_norm: float) -> float:
        """What a batch counts for a state. Where values are not finite, that may be the gradient's alone."""
        return loss if self.suspicion.trouble.is_of_the_model or math.isfinite(grad_norm) else math.inf

    @property
    def outcome(self) -> str:
        """In words."""
        reason = self.suspicion.trouble.reason
        if not self.suspicion.trouble.is_of_the_model:
            if self.is_worse:
                return f"{reason}; the state of step {self.target} is fine on the same data: the model is worse"
            return (
                f"{reason}; the state of step {self.target} is no better on this data: the data is bad, and is skipped "
                "until it is better"
            )
        costs = (
            f"the next batches cost {statistics.median(self.of_earlier):.4g} at the state of step {self.target} and "
            f"{statistics.median(self.of_present):.4g} at the present one"
        )
        found = "model is worse" if self.is_worse else "data has changed"
        return f"{reason}; {costs}: the {found}"


def _spread(losses: Sequence[float]) -> float:
    return max(losses) - min(losses) if losses else 0.0


# What the guard does with a loop's objects: keep their states, lower learning rates, undo a forward pass.


RATES_OF_A_GROUP = ("lr", "initial_lr", "max_lr", "min_lr")  # the last two are OneCycleLR's


class HasState(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class Trainable:
    """A model's state without its frozen parameters: enough for a rollback, and small if only adapters are trained."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        parameters = self.model.named_parameters(remove_duplicate=False)
        frozen = {name for name, parameter in parameters if not parameter.requires_grad}
        return {name: value for name, value in self.model.state_dict().items() if name not in frozen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.model.load_state_dict(state_dict, strict=False)


class Averages:
    """Running statistics of batch norm: the forward pass changes them before the batch is judged."""

    def __init__(self, objects: Iterable[HasState]) -> None:
        self._norms = [part for each in objects for part in _parts(each) if isinstance(part, _NormBase)]
        self._kept: list[Tensor] = []
        self.keep()

    def keep(self) -> None:
        self._kept = [average.clone() for average in self._live()]

    @torch.no_grad()
    def settle(self, accepted: Tensor) -> None:
        """Keep the new statistics, or restore the old ones if the update was rejected, without a host sync."""
        for average, kept in zip(self._live(), self._kept, strict=True):
            average.copy_(torch.where(accepted, average, kept.to(average.device)))
        self.keep()

    def _live(self) -> list[Tensor]:
        return [average for norm in self._norms for average in norm.buffers(recurse=False)]


def _parts(each: HasState) -> Iterable[nn.Module]:
    model = each.model if isinstance(each, Trainable) else each
    return model.modules() if isinstance(model, nn.Module) else ()


def has_rates(objects: Iterable[Any]) -> bool:
    return any(hasattr(each, "param_groups") for each in objects)


def highest_rate(objects: Iterable[Any]) -> float | None:
    """Of all groups of all optimizers; None: there is none."""
    rates = [float(group["lr"]) for each in objects for group in getattr(each, "param_groups", ()) if "lr" in group]
    return max(rates, default=None)


def lower_rates(objects: Sequence[Any], factor: float) -> None:
    """In every optimizer among the objects, and in every scheduler that would otherwise raise them again."""
    for each in objects:
        for group in getattr(each, "param_groups", ()):
            for name in RATES_OF_A_GROUP:
                if name in group:
                    group[name] = group[name] * factor
        if hasattr(each, "base_lrs"):
            each.base_lrs = [rate * factor for rate in each.base_lrs]
        lower_rates(getattr(each, "_schedulers", ()), factor)  # SequentialLR, ChainedScheduler
