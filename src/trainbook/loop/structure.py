"""What is known of anybody's module by its structure: which parts it is made of, what it is trained by, and what of it
an optimizer holds. Names of attributes are the author's own and are not looked at.

A part that is not found is absent only in a module that is made of PyTorch's own parts throughout: code of the author's
may call `F.dropout` where nobody sees it. Then the fact is left out, which means unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainbook.loop.step_metrics import layer_of

DROPOUTS = (nn.modules.dropout._DropoutNd,)
BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
CONVOLUTIONS = (nn.modules.conv._ConvNd,)


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """The numbers of all and of trainable parameters. A packed 4-bit weight counts as the values it holds."""
    sizes = [(_numel(parameter), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained)


def _numel(parameter: nn.Parameter) -> int:
    packed = getattr(parameter, "quant_state", None)
    return packed.shape.numel() if packed is not None else parameter.numel()


def structure_facts(model: nn.Module) -> dict[str, Any]:
    """Sizes, layers without a trainable parameter, and parts: `has_dropout` and `dropout`, the highest rate, …"""
    num_parameters, num_trained = count_parameters(model)
    frozen = {layer_of(name) for name, parameter in model.named_parameters() if not parameter.requires_grad}
    trained = {layer_of(name) for name, parameter in model.named_parameters() if parameter.requires_grad}
    facts: dict[str, Any] = {
        "num_parameters": num_parameters,
        "num_trained": num_trained,
        "untrained_layers": sorted(frozen - trained),
    }
    parts = list(model.modules())
    is_all_known = all(type(part).__module__.startswith("torch.nn.") for part in parts)
    rates = list(_dropouts(parts))
    found = {
        "has_dropout": max(rates, default=0.0) > 0,
        "has_batch_norm": any(isinstance(part, BATCH_NORMS) for part in parts),
        "has_embedding": any(isinstance(part, EMBEDDINGS) for part in parts),
        "has_attention": any(_is_attention(part) for part in parts),
        "has_recurrence": any(isinstance(part, RECURRENT) for part in parts),
        "has_convolution": any(isinstance(part, CONVOLUTIONS) for part in parts),
    }
    # Running averages, convolutions and cells need weights of their own, which nobody keeps outside a module of theirs.
    hidden_in_code = ("has_dropout", "has_attention")
    facts |= {
        name: is_there for name, is_there in found.items() if is_there or is_all_known or name not in hidden_in_code
    }
    if rates:
        facts["dropout"] = max(rates)
    return facts


@torch.no_grad()
def matrix_facts(model: nn.Module) -> dict[str, Any]:
    """Of a model that is not yet trained: how many matrices it has (a vector of weights is none), how many of them are
    trained, and how many are nothing but zeros. Reads the device."""
    matrices = [each for each in model.parameters() if each.ndim > 1 and each.is_floating_point() and each.numel() > 1]
    return {
        "matrices": len(matrices),
        "matrices_trained": sum(each.requires_grad for each in matrices),
        "matrices_of_zeros": sum(not bool(each.any()) for each in matrices),
    }


def _dropouts(parts: Iterable[nn.Module]) -> Iterator[float]:
    """The rate of each part that drops something: of a dropout, of attention, between layers of a recurrent net."""
    for part in parts:
        rate = part.p if isinstance(part, DROPOUTS) else getattr(part, "dropout", None)
        if isinstance(rate, (int, float)) and not isinstance(rate, bool):
            yield float(rate)


def _is_attention(part: nn.Module) -> bool:
    name = type(part).__name__.lower()
    return isinstance(part, nn.MultiheadAttention) or "attention" in name or "attn" in name


# What an optimizer holds, and how it is set


ADAM = ("Adam", "AdamW", "NAdam", "RAdam")
# By the name of the class, which several packages share: the knob's value, and which knob each of its settings is.
KINDS = {
    **dict.fromkeys(("Adam", "AdamW", "FusedAdam", "DeepSpeedCPUAdam"), "adamw"),
    **dict.fromkeys(("AdamW8bit", "Adam8bit"), "adamw_8bit"),
    **dict.fromkeys(("PagedAdamW8bit", "PagedAdam8bit"), "paged_adamw_8bit"),
    "StableAdamW": "stable_adamw",
    "Lion": "lion",
    "Muon": "muon",
    "SGD": "sgd",
}


def optimizer_settings(optimizer: Any) -> dict[str, Any]:
    """By knob path, from the class and the groups of an optimizer. Groups that differ: the highest rate and decay.

    A learning rate of a schedule that warms up is not its peak: where a scheduler has noted the rate that it climbs to
    (`max_lr`, of OneCycleLR) or that the user asked for (`initial_lr`), that is it.
    """
    optimizer = innermost(optimizer)
    groups = [group for group in getattr(optimizer, "param_groups", ()) if isinstance(group, Mapping)]
    settings: dict[str, Any] = {}
    if (kind := KINDS.get(type(optimizer).__name__)) is not None:
        settings["optimizer.type"] = kind
    for path, names in (("learning_rate", ("max_lr", "initial_lr", "lr")), ("weight_decay", ("weight_decay",))):
        values = [_number(next((group[name] for name in names if name in group), None)) for group in groups]
        if known := [value for value in values if value is not None]:
            settings[f"optimizer.{path}"] = max(known)
    first = groups[0] if groups else {}
    betas = first.get("betas")
    if isinstance(betas, (tuple, list)) and len(betas) == 2:
        pairs = zip(("optimizer.beta1", "optimizer.beta2"), map(_number, betas), strict=True)
        settings |= {path: beta for path, beta in pairs if beta is not None}
    for path, name in (("epsilon", "eps"), ("momentum", "momentum")):
        if (value := _number(first.get(name))) is not None:
            settings[f"optimizer.{path}"] = value
    return settings


def learning_rate(optimizer: Any) -> float | Tensor | None:
    """The highest of its groups, as it is now; a tensor is left where it is."""
    rates = [group["lr"] for group in getattr(optimizer, "param_groups", ()) if "lr" in group]
    if rates and all(isinstance(rate, Tensor) for rate in rates):
        return torch.stack([rate.detach().reshape(()) for rate in rates]).amax()
    numbers = [number for rate in rates if (number := _number(rate)) is not None]
    return max(numbers, default=None)


def unheld_parameters(model: nn.Module, optimizer: Any) -> list[str]:
    """Trainable parameters of the model that the optimizer does not have: they keep the values they have."""
    held = {id(parameter) for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]}
    return [
        name for name, parameter in model.named_parameters() if parameter.requires_grad and id(parameter) not in held
    ]


def held_parameters(optimizer: Any) -> list[Tensor]:
    return [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]


def foreign_parameters(model: nn.Module, optimizer: Any) -> int:
    """How many parameters of the optimizer the model does not have, as after a model was built or copied anew."""
    own = {id(parameter) for parameter in model.parameters()}
    return sum(id(parameter) not in own for parameter in held_parameters(optimizer))


def innermost(optimizer: Any) -> Any:
    """A trainer's wrapper holds the optimizer itself."""
    for _ in range(4):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or not hasattr(inner, "param_groups"):
            break
        optimizer = inner
    return optimizer


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 else None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None
