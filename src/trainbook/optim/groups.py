"""Parameter groups, from roles: who decays, at which rate each learns, and which matrices Muon makes orthogonal; and
the optimizer state that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainbook.errors import ResumeError
from trainbook.knobs.scaling import STANDARD, Scaling
from trainbook.knobs.sections.optimizer import OptimizerKnobs as OptimizerKnobs
from trainbook.roles import Kind, Role

Named = tuple[str, nn.Parameter]
WITHOUT_EPSILON = ("lion", "sgd")


def is_decayed(role: Role, decay_embeddings: bool) -> bool:
    """Weight decay shrinks matrices; norms and biases have no business being near zero. Embeddings are a choice."""
    if role.kind is Kind.EMBEDDING:
        return decay_embeddings
    return role.is_matrix


def decay_per_rate(knobs: OptimizerKnobs, *, peak: float) -> float:
    """What an optimizer multiplies by its rate to get the decay of an update. Divided by the peak of the group's own
    rate, the decay that comes out is weight_decay times the share of the peak: it no longer depends on the peak."""
    return knobs.weight_decay / peak if knobs.weight_decay_mode == "independent" else knobs.weight_decay


@dataclass(frozen=True, order=True)
class _Key:
    """What the members of a group share; groups follow each other in this order."""

    part: int  # 0: Muon's hidden matrices, 1: others that decay, 2: those that don't
    rate_multiplier: float
    epsilon_multiplier: float


def parameter_groups(
    module: nn.Module, roles: dict[str, Role], knobs: OptimizerKnobs, scaling: Scaling = STANDARD
) -> list[dict]:
    """Decayed and not; for Muon the hidden matrices first, by themselves; under muP by their rate and epsilon. A tied
    parameter appears once; order follows the module.

    `rate_multiplier` is for whoever gives the groups their rates.
    """
    members: dict[_Key, list[Named]] = {}
    for name, parameter in module.named_parameters():  # tied parameters are listed once
        if parameter.requires_grad:
            members.setdefault(_key(roles[name], knobs, scaling), []).append((name, parameter))
    return [_group(module, key, members[key], knobs) for key in sorted(members)]


def _key(role: Role, knobs: OptimizerKnobs, scaling: Scaling) -> _Key:
    if knobs.type == "muon" and role.kind is Kind.HIDDEN:
        return _Key(0, scaling.rate(role, knobs.type), 1.0)
    epsilon = scaling.epsilon(role) if knobs.type not in WITHOUT_EPSILON else 1.0
    return _Key(1 if is_decayed(role, knobs.decay_embeddings) else 2, scaling.rate(role, knobs.type), epsilon)


def _group(module: nn.Module, key: _Key, members: list[Named], knobs: OptimizerKnobs) -> dict:
    # Divided by the multiplier: rate x decay, the share that an update takes of each weight, is the same for all.
    decay = decay_per_rate(knobs, peak=knobs.learning_rate) / key.rate_multiplier if key.part < 2 else 0.0
    group = {
        "params": [parameter for _, parameter in members],
        "names": [name for name, _ in members],
        "weight_decay": decay,
        "rate_multiplier": key.rate_multiplier,
    }
    if key.epsilon_multiplier != 1.0:
        group["eps"] = knobs.epsilon * key.epsilon_multiplier
    if key.part == 0:
        group["row_parts"] = [row_parts(module, name, parameter) for name, parameter in members]
        group["column_parts"] = [column_parts(module, name, parameter) for name, parameter in members]
    return group


def row_parts(module: nn.Module, name: str, parameter: nn.Parameter) -> list[int]:
    """How many rows each matrix has that one parameter holds: queries, keys and values are often one matrix product.

    A layer says so by its attribute `row_parts`; without it, its weight is one matrix.
    """
    owner, _, attribute = name.rpartition(".")
    parts = getattr(module.get_submodule(owner), "row_parts", None) if attribute == "weight" else None
    if parts is None:
        return [parameter.shape[0]]
    assert sum(parts) == parameter.shape[0], f"{name} has {parameter.shape[0]} rows, but its row_parts are {parts}"
    return list(parts)


def column_parts(module: nn.Module, name: str, parameter: nn.Parameter) -> list[int] | None:
    """The same of a layer whose weight lies the other way, if it says so: its matrices are side by side."""
    owner, _, attribute = name.rpartition(".")
    parts = getattr(module.get_submodule(owner), "column_parts", None) if attribute == "weight" else None
    assert parts is None or sum(parts) == parameter.shape[1], (
        f"{name} has columns that do not match its column_parts {parts}"
    )
    return parts


# What a checkpoint holds of an optimizer: its averages and counts, by the name of the parameter.


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
