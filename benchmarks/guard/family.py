"""What a healthy program of the bench is, and the training loop that most of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from guard.door import Door


@dataclass(frozen=True)
class Family:
    """A program that trains something small. Nothing is wrong with it: whatever a guard does to it is a false alarm."""

    name: str
    kind: str
    body: Callable[[int, Door], float]

    def train(self, seed: int, door: Door) -> float:
        """The final quality, lower is better: a loss on data that was not trained on, or minus a return."""
        torch.manual_seed(1000 + seed)
        return self.body(seed, door)


def family(kind: str) -> Callable[[Callable[[int, Door], float]], Family]:
    """A function of a seed and a door, named after what it trains."""

    def made(body: Callable[[int, Door], float]) -> Family:
        return Family(getattr(body, "__name__", "?").strip("_").replace("_", "-"), kind, body)

    return made


def families_of(*modules: ModuleType) -> dict[str, Family]:
    """All that the modules define, by name."""
    found = [each for module in modules for each in vars(module).values() if isinstance(each, Family)]
    found += [
        each
        for module in modules
        for many in vars(module).values()
        if isinstance(many, list)
        for each in many
        if isinstance(each, Family)
    ]
    names = [each.name for each in found]
    assert len(set(names)) == len(names), f"two families have one name: {names}"
    return {each.name: each for each in found}


def run_steps(
    door: Door,
    steps: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[int], Tensor],
    *,
    schedule: Any = None,
    clip: float | None = None,
    name: str = "loss",
) -> None:
    """The loop that everybody writes. `loss_of` draws a batch and gives its loss."""
    policy = door(name, model, optimizer, *([] if schedule is None else [schedule]), clip=clip)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        if policy.step(loss, model.parameters()):
            optimizer.step()
            if schedule is not None:
                schedule.step()


def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU, dropout: float = 0.0, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, (width, after) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(width, after))
        if number < len(sizes) - 2:
            layers += [nn.BatchNorm1d(after)] if norm else []
            layers.append(activation())
            layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


@torch.no_grad()
def measured(model: nn.Module, loss: Callable[[], Tensor]) -> float:
    """A loss in evaluation mode."""
    model.eval()
    value = float(loss())
    model.train()
    return value


class Apart:
    """Random numbers of their own for a data set or a test set: the same whatever the loop has drawn before."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator)
