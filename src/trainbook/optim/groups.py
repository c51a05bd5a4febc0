"""Parameter groups, from roles: who decays, and which matrices Muon makes orthogonal."""

from __future__ import annotations

from torch import nn

from trainbook.knobs.sections.optimizer import Optimizer as OptimizerKnobs
from trainbook.roles import Kind, Role

Named = tuple[str, nn.Parameter]


def is_decayed(role: Role, decay_embeddings: bool) -> bool:
    """Weight decay shrinks matrices; norms and biases have no business being near zero. Embeddings are a choice."""
    if role.kind is Kind.EMBEDDING:
        return decay_embeddings
    return role.is_matrix


def decay_per_rate(knobs: OptimizerKnobs, *, peak: float) -> float:
    """What an optimizer multiplies by its rate to get the decay of an update. Divided by the peak of the group's own
    rate, the decay that comes out is weight_decay times the share of the peak: it no longer depends on the peak."""
    return knobs.weight_decay / peak if knobs.weight_decay_mode == "independent" else knobs.weight_decay


def parameter_groups(module: nn.Module, roles: dict[str, Role], knobs: OptimizerKnobs) -> list[dict]:
    """Decayed and not; for Muon the hidden matrices first, by themselves. A tied parameter appears once; order
    follows the module."""
    hidden, decayed, rest = [], [], []
    for name, parameter in module.named_parameters():  # tied parameters are listed once
        if not parameter.requires_grad:
            continue
        if knobs.type == "muon" and roles[name].kind is Kind.HIDDEN:
            hidden.append((name, parameter))
        elif is_decayed(roles[name], knobs.decay_embeddings):
            decayed.append((name, parameter))
        else:
            rest.append((name, parameter))
    decay = decay_per_rate(knobs, peak=knobs.learning_rate)
    groups = [_group(hidden, decay), _group(decayed, decay), _group(rest, 0.0)]
    if hidden:
        groups[0]["row_parts"] = [row_parts(module, name, parameter) for name, parameter in hidden]
        groups[0]["column_parts"] = [column_parts(module, name, parameter) for name, parameter in hidden]
    return [group for group in groups if group["params"]]


def _group(members: list[Named], weight_decay: float) -> dict:
    names, parameters = [name for name, _ in members], [parameter for _, parameter in members]
    return {"params": parameters, "names": names, "weight_decay": weight_decay}


def row_parts(module: nn.Module, name: str, parameter: nn.Parameter) -> list[int]:
    """How many rows each matrix has that one parameter holds: queries, keys and values are often one matrix product.

    A layer says so by its attribute `row_parts`; without it, its weight is one matrix.
    """
    owner, _, attribute = name.rpartition(".")
    parts = getattr(module.get_submodule(owner), "row_parts", None) if attribute == "weight" else None
    if parts is None:
        return [parameter.shape[0]]
    assert sum(parts) == parameter.shape[0], f"{name} has {parameter.shape[0]} rows, its row_parts are {parts}"
    return list(parts)


def column_parts(module: nn.Module, name: str, parameter: nn.Parameter) -> list[int] | None:
    """The same of a layer whose weight lies the other way, if it says so: its matrices are side by side."""
    owner, _, attribute = name.rpartition(".")
    parts = getattr(module.get_submodule(owner), "column_parts", None) if attribute == "weight" else None
    assert parts is None or sum(parts) == parameter.shape[1], f"{name} has other columns than its column_parts {parts}"
    return parts
