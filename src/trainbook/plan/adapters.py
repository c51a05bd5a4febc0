"""A network whose pretrained weights are frozen, packed if asked to, with adapters beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.knobs.linear_names import is_split, is_targeted, names_of, row_parts, unknown_target
from trainbook.plan.weights import Network, StackShape, Weight
from trainbook.roles import Kind

NEW = ("head.", "pooler.")  # of tasks that predict labels: the pretrained model had none, and they are trained whole
LABELLED = ("classify", "classify_many", "regress", "tag")
BITS = {"none": None, "4bit": 4, "8bit": 8}


def with_adapters(config: Config, model: Network, *, is_foreign: bool = False) -> Network:
    """Unchanged without model.lora_rank. A model of Hugging Face may name its layers in its own way: all are taken."""
    if config.model.lora_rank is None:
        return model
    if is_foreign:
        config = config.model_copy(update={"model": config.model.model_copy(update={"lora_targets": None})})
    _must_be_there(config, model)
    stacks = tuple(
        StackShape(stack.name, stack.count, tuple(_adapted(config, stack.block)), stack.causal, stack.looks_across)
        for stack in model.stacks
    )
    return replace(model, stacks=stacks, rest=tuple(_adapted(config, model.rest)), is_adapted=True)


def _adapted(config: Config, weights: tuple[Weight, ...]) -> Iterator[Weight]:
    rank, bits = config.model.lora_rank, BITS[config.model.quantize_base]
    assert rank is not None
    for weight in weights:
        if task_name(config) in LABELLED and weight.name.startswith(NEW):
            yield replace(weight, is_trained_beside=True)
            continue
        is_linear = weight.kind is Kind.HIDDEN and len(weight.shape) == 2
        yield replace(weight, is_frozen=True, packed_bits=bits if is_linear else None)
        if is_linear:
            for name, rows in _adapters(config, weight):
                for part, shape in (("lora_A", (rank, weight.shape[1])), ("lora_B", (rows, rank))):
                    yield Weight(f"{name}.{part}.default.weight", shape, Kind.HIDDEN, is_trained_beside=True)


def _adapters(config: Config, weight: Weight) -> Iterator[tuple[str, int]]:
    """The layers beside which adapters are put, with their rows: several where peft has several matrices."""
    layer, targets = weight.name.removesuffix(".weight"), config.model.lora_targets
    names = names_of(config, layer)
    if not is_split(config, layer):
        if is_targeted(layer, names, targets):
            yield layer, weight.shape[0]
        return
    for name, rows in zip(names, row_parts(config, layer), strict=True):
        if is_targeted(layer, (name,), targets):
            yield f"{layer}.{name.rpartition('.')[2]}", rows


def _must_be_there(config: Config, model: Network) -> None:
    linear = [weight for weight, _ in model.grouped() if weight.kind is Kind.HIDDEN and len(weight.shape) == 2]
    layers = [weight.name.removesuffix(".weight") for weight in linear]
    named = {layer: names_of(config, layer) for layer in layers}
    for target in config.model.lora_targets or ():
        if not any(is_targeted(layer, names, (target,)) for layer, names in named.items()):
            raise UserError(unknown_target(target, [name for layer in layers for name in named[layer] or (layer,)]))
