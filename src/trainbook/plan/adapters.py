"""A network whose pretrained weights are frozen, packed if asked to, with adapters beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.plan.weights import Network, Stack, Weight
from trainbook.roles import Kind

NEW = ("head.", "pooler.")  # of tasks that predict labels: the pretrained model had none, and they are trained whole
LABELLED = ("classify", "classify_many", "regress", "tag")
BITS = {"none": None, "4bit": 4, "8bit": 8}


def with_adapters(config: Config, model: Network, *, is_foreign: bool = False) -> Network:
    """As it is, without model.lora_rank. A model of Hugging Face has its own names for layers, of which all are taken;
    and matrices apart that are one here, each with an adapter of its own, but for GPT-2."""
    if config.model.lora_rank is None:
        return model
    are_apart = is_foreign and not (config.model.type == "gpt" and config.model.position == "learned")
    if is_foreign:
        config = config.model_copy(update={"model": config.model.model_copy(update={"lora_targets": None})})
    _must_be_there(config, model)
    stacks = tuple(
        Stack(
            stack.name, stack.count, tuple(_adapted(config, stack.block, are_apart)), stack.causal, stack.looks_across
        )
        for stack in model.stacks
    )
    return replace(model, stacks=stacks, rest=tuple(_adapted(config, model.rest, are_apart)), is_adapted=True)


def _adapted(config: Config, weights: tuple[Weight, ...], are_apart: bool) -> Iterator[Weight]:
    rank, bits = config.model.lora_rank, BITS[config.model.quantize_base]
    assert rank is not None
    for weight in weights:
        if task_name(config) in LABELLED and weight.name.startswith(NEW):
            yield replace(weight, is_trained_beside=True)
            continue
        is_linear = weight.kind is Kind.HIDDEN and len(weight.shape) == 2
        yield replace(weight, is_frozen=True, packed_bits=bits if is_linear else None)
        if is_linear and is_targeted(config, weight):
            name, (rows, columns) = weight.name.removesuffix(".weight"), weight.shape
            inner = rank * (_parts(config, name) if are_apart else 1)
            for part, shape in (("lora_A", (inner, columns)), ("lora_B", (rows, rank))):
                yield Weight(f"{name}.{part}.default.weight", shape, Kind.HIDDEN, is_trained_beside=True)


def _parts(config: Config, name: str) -> int:
    """Matrices in this one."""
    gated = 2 if config.model.activation in ("swiglu", "geglu", "geglu_tanh") else 1
    return {"query_key_value": 3, "key_value": 2, "up": gated}.get(name.rpartition(".")[2], 1)


def is_targeted(config: Config, weight: Weight) -> bool:
    endings, name = config.model.lora_targets, weight.name.removesuffix(".weight")
    return endings is None or any(name == ending or name.endswith(f".{ending}") for ending in endings)


def _must_be_there(config: Config, model: Network) -> None:
    linear = [weight for weight, _ in model.grouped() if weight.kind is Kind.HIDDEN and len(weight.shape) == 2]
    for ending in config.model.lora_targets or ():
        only = config.model_copy(update={"model": config.model.model_copy(update={"lora_targets": (ending,)})})
        if not any(is_targeted(only, weight) for weight in linear):
            known = sorted({weight.name.removesuffix(".weight").rpartition(".")[2] for weight in linear})
            raise UserError(
                f"model.lora_targets: no linear layer's name ends with '{ending}'. There are {', '.join(known)}."
            )
