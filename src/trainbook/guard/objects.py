"""What the guard does with a loop's objects: keep their states, lower learning rates, undo a forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

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
