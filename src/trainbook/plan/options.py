"""Changes of knobs that save memory or time: what each is, and what is said of it. The global batch, the model and the
data stay what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainbook.knobs.config import Config
from trainbook.knobs.derive import has_windows
from trainbook.plan.subject import PlanSubject
from trainbook.plan.traffic import is_compiled

Change = tuple[str, Any]  # a path and a value
Changes = tuple[Change, ...]

RECOMPUTING = ("off", "selective", "full")
FSDP: Changes = (("distributed.strategy", "fsdp"),)
SYNC: Change = ("distributed.sync_each_batch", True)
GATHER: Change = ("distributed.gather_dtype", "compute")
OFFLOAD: Change = ("distributed.offload_optimizer", "cpu")
OFFLOAD_ALL: Changes = (OFFLOAD, ("distributed.offload_parameters", "cpu"))

# Changes that training may feel, or that need more than a knob: what they count as, beside their cost in time.
RISK = {
    "precision.weights": 0.5,  # 16-bit weights forget small updates
    "optimizer.type": 0.03,
    "distributed.reduce_dtype": 0.05,
    "distributed.zero_stage": 0.05,  # DeepSpeed has to be installed
    "model.quantize_base": 0.02,
}


def saving(subject: PlanSubject) -> list[list[Changes]]:
    """Groups of alternatives that save memory: of each group none or one is taken. The cheapest of a group first."""
    config = subject.config
    groups = [
        [(("memory.gradient_checkpointing", how),) for how in RECOMPUTING[_recomputing(config) + 1 :]],
        [(("precision.compute", each),) for each in _narrow_compute(subject)],
        [(("memory.compile", "on"),)] if _may_compile(subject) else [],
        list(_narrow_weights(subject)),
        [(("optimizer.type", each),) for each in _narrow_optimizers(config)],
        list(_spread(subject)),
        list(_quantized(config)),
    ]
    return [group for group in groups if group]


def quickening(subject: PlanSubject) -> list[list[Changes]]:
    """Groups of alternatives that may save time, the most promising of a group first."""
    config, knobs = subject.config, subject.config.distributed
    groups: list[list[Changes]] = [
        [(("memory.gradient_checkpointing", how),) for how in RECOMPUTING[: _recomputing(config)]],
        [(("precision.compute", each),) for each in _narrow_compute(subject)],
        [(("memory.compile", "on"),)] if _may_compile(subject) else [],
    ]
    if config.precision.compute == "fp32" and not config.precision.tf32:
        groups.append([(("precision.tf32", True),)])
    if subject.devices > 1 and knobs.strategy == "fsdp":
        groups.append([(("distributed.strategy", "ddp"),)])
        groups.append([(("distributed.sync_each_batch", False),)] if knobs.sync_each_batch else [])
        groups.append([(GATHER,)] if knobs.gather_dtype == "weights" else [])
        groups.append([(("distributed.reshard_after_forward", False),)] if knobs.reshard_after_forward else [])
        per_machine = subject.cluster.gpus_per_machine
        is_larger = subject.devices > per_machine and subject.devices % per_machine == 0
        groups.append([(("distributed.shard_over", per_machine),)] if is_larger and knobs.shard_over is None else [])
    if knobs.strategy == "deepspeed":
        groups.append([(("distributed.offload_optimizer", "none"),)] if knobs.offload_optimizer != "none" else [])
        groups.append([(("distributed.offload_parameters", "none"),)] if knobs.offload_parameters != "none" else [])
        groups.append([(("distributed.zero_stage", stage),) for stage in range(1, knobs.zero_stage)])
    return [group for group in groups if group]


def _recomputing(config: Config) -> int:
    return RECOMPUTING.index(config.memory.gradient_checkpointing)


def _narrow_compute(subject: PlanSubject) -> Iterator[str]:
    compute = subject.config.precision.compute
    if compute == "fp32" or (compute == "auto" and not subject.cluster.has_bf16):
        yield "bf16" if subject.cluster.has_bf16 else "fp16"


def _may_compile(subject: PlanSubject) -> bool:
    """Rows of many widths would be compiled again and again."""
    config = subject.config
    widths_vary = not has_windows(config) and config.data.padding in ("longest", "bucketed")
    return not is_compiled(config, subject.devices) and not widths_vary and config.model.type != "hf"


def _narrow_weights(subject: PlanSubject) -> Iterator[Changes]:
    config = subject.config
    if config.precision.weights != "fp32" or not subject.cluster.has_bf16:
        return
    changes: Changes = (("precision.weights", "bf16"),)
    if config.precision.compute not in ("auto", "bf16"):
        changes = (*changes, ("precision.compute", "bf16"))
    if config.optimizer.beta2 > 0.996 and config.model.lora_rank is None:
        changes = (*changes, ("optimizer.beta2", 0.99))
    yield changes


def _narrow_optimizers(config: Config) -> tuple[str, ...]:
    narrow = {"adamw": ("adamw_8bit", "paged_adamw_8bit"), "adamw_8bit": ("paged_adamw_8bit",)}
    return ({"stable_adamw": narrow["adamw"]} | narrow).get(config.optimizer.type, ())


def _spread(subject: PlanSubject) -> Iterator[Changes]:
    """Slices of the model over the GPUs that are there, and what lies in the host's memory instead."""
    config, knobs = subject.config, subject.config.distributed
    if knobs.strategy == "deepspeed":
        for stage in range(knobs.zero_stage, 4):
            stages: Changes = () if stage == knobs.zero_stage else (("distributed.zero_stage", stage),)
            offloads = [(), (OFFLOAD,)] if knobs.offload_optimizer == "none" else [()]
            offloads += [OFFLOAD_ALL] if stage == 3 and knobs.offload_parameters == "none" else []
            yield from ((*stages, *each) for each in offloads if stages or each)
        return
    if subject.devices > 1:
        base = () if knobs.strategy == "fsdp" else FSDP
        gathers = [(), (GATHER,)] if knobs.gather_dtype == "weights" else [()]
        syncs = [()] if knobs.sync_each_batch else [(), (SYNC,), (SYNC, ("distributed.reduce_dtype", "bf16"))]
        wider: list[Changes] = [()]
        if knobs.strategy == "fsdp" and knobs.shard_over not in (None, subject.devices):
            wider.append((("distributed.shard_over", None),))
        if knobs.strategy == "fsdp" and not knobs.reshard_after_forward:
            wider.append((("distributed.reshard_after_forward", True),))
        found = ((*base, *more, *sync, *gather) for more in wider for sync in syncs for gather in gathers)
        yield from (each for each in found if each)
    zero: Changes = (("distributed.strategy", "deepspeed"),)
    if config.memory.compile == "on":
        zero = (*zero, ("memory.compile", "off"))
    if subject.devices > 1 and knobs.strategy != "fsdp":
        yield from ((*zero, ("distributed.zero_stage", stage)) for stage in (1, 2, 3))
    yield (*zero, ("distributed.zero_stage", 2), OFFLOAD)
    yield (*zero, ("distributed.zero_stage", 3), *OFFLOAD_ALL)


def _quantized(config: Config) -> Iterator[Changes]:
    if config.model.lora_rank is not None and config.model.quantize_base == "none":
        yield from ((("model.quantize_base", each),) for each in ("8bit", "4bit"))


WORDS: dict[str, str | dict[Any, str]] = {
    "memory.gradient_checkpointing": {
        "off": "no activations are recomputed",
        "selective": "cheap activations are recomputed instead of kept",
        "full": "activations are recomputed instead of kept",
    },
    "memory.compile": {"on": "fused kernels, after a minute or two of compiling"},
    "precision.compute": "matrix products in 16 bits",
    "precision.tf32": "fp32 matrix products in TF32",
    "precision.weights": "weights, gradients and optimizer state in 16 bits: watch the loss",
    "optimizer.type": {
        "adamw_8bit": "optimizer state in 8 bits",
        "paged_adamw_8bit": "optimizer state in 8 bits, paged out to host memory where needed",
    },
    "distributed.strategy": {
        "fsdp": "each GPU holds a shard of weights, gradients and optimizer state",
        "ddp": "each GPU holds the whole model, and only gradients are exchanged",
        "deepspeed": "DeepSpeed's ZeRO",
    },
    "distributed.sync_each_batch": {
        True: "gradients are exchanged after each micro-batch, so none are kept whole",
        False: "gradients are exchanged once per update",
    },
    "distributed.reduce_dtype": "gradients are summed in bf16",
    "distributed.gather_dtype": "weights travel in 16 bits",
    "distributed.reshard_after_forward": {
        True: "blocks are released after their forward pass",
        False: "weights are gathered once per step instead of twice",
    },
    "distributed.shard_over": {None: "sharded over all GPUs"},
    "distributed.zero_stage": {
        1: "optimizer state sharded",
        2: "optimizer state and gradients sharded",
        3: "optimizer state, gradients and weights sharded",
    },
    "distributed.offload_optimizer": {"cpu": "optimizer state in host memory", "none": "optimizer state on the GPU"},
    "distributed.offload_parameters": {"cpu": "weights in host memory", "none": "weights on the GPU"},
    "model.quantize_base": {"8bit": "frozen weights in 8 bits", "4bit": "frozen weights in 4 bits"},
    "evaluation.per_device_eval_batch_size": "fewer rows at a time in evaluation",
    "data.max_seq_length": "shorter sequences, which changes the task",
}


def words_of(change: Change, subject: PlanSubject) -> str | None:
    path, value = change
    if path == "batch.per_device_train_batch_size":
        how = "fewer" if value < subject.micro_batch() else "more"
        return f"{how} rows at a time, the same global batch"
    if path == "precision.weights" and subject.config.model.lora_rank is not None:
        return "frozen weights in 16 bits"
    if path == "distributed.shard_over" and value is not None:
        return f"sharded over {value} GPUs, replicated across machines"
    told = WORDS.get(path)
    return told.get(value) if isinstance(told, dict) else told


def risk(changes: Changes, config: Config) -> float:
    is_adapted = config.model.lora_rank is not None
    return sum(RISK.get(path, 0.0) for path, _ in changes if not (is_adapted and path == "precision.weights"))
