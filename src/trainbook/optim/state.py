"""What a checkpoint holds of an optimizer: its averages and counts, by the name of the parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainbook.errors import ResumeError


def _named(optimizer: Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    for group in optimizer.param_groups:
        yield from zip(group["names"], group["params"], strict=True)


def optimizer_state(optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """The tensors themselves, not copies. Rates, betas and decay are not among them: the configuration has those."""
    return {name: dict(optimizer.state[parameter]) for name, parameter in _named(optimizer)}


@torch.no_grad()
def load_optimizer_state(optimizer: Optimizer, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Values are copied into the tensors that are there: nothing is shared with `state`, types and paging stay."""
    for name, parameter in _named(optimizer):
        saved = state.get(name)
        if saved is None:
            raise ResumeError(f"the checkpoint has no optimizer state for {name}: that parameter was not trained then.")
        own = optimizer.state[parameter]
        for key, value in own.items():
            if not saved:
                break  # nothing was kept of it then, as of SGD without momentum: it starts anew
            if key not in saved:
                raise ResumeError(
                    f"the checkpoint's optimizer state of {name} has no {key}: it was saved by a different optimizer "
                    "type."
                )
            if isinstance(value, Tensor):
                if value.shape != saved[key].shape:
                    shapes = f"{tuple(saved[key].shape)}, not {tuple(value.shape)}"
                    raise ResumeError(f"the checkpoint's {key} of {name} has the shape {shapes}.")
                value.copy_(saved[key])
            else:
                own[key] = saved[key]
