"""A DeepSpeed file beside the knobs: what it may say, what must agree, and what goes on to the engine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.errors import ConfigError, Problem, UserError
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape
from trainbook.knobs.text import read_file
from trainbook.knobs.values import show
from trainbook.nearest import did_you_mean

# The names of a DeepSpeed file: which are passed on to the engine, and which are not honoured, with the reason.


TAKEN_APART = {
    "zero_optimization",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
    "optimizer",
    "optimizer.params",
    "fp16",
    "bf16",
}

# DeepSpeed's spelling -> ours. Its Adam decays weights as AdamW does, unless it is told otherwise.
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "lion": "lion"}

PASSED = (
    "aio",
    "comet",
    "comms_logger",
    "communication_data_type",
    "csv_monitor",
    "disable_python_gc",
    "dump_state",
    "flops_profiler",
    "gradient_predivide_factor",
    "log_level",
    "memory_breakdown",
    "prescale_gradients",
    "steps_per_print",
    "tensorboard",
    "timers",
    "wall_clock_breakdown",
    "wandb",
)

_OWN = "is set from Trainbook's knobs."
_LAID_OUT = "splits the model; this integration supports data parallelism only."
_DATA = "belongs to DeepSpeed's data loader, which is not used."
_BATCHES = "is set by Trainbook: it tells the engine which micro-batch is the last."

REFUSED = {
    "scheduler": "would change the learning rate beside schedule.type. Remove it, and set schedule.*.",
    "optimizer.legacy_fusion": "belongs to DeepSpeed's optimizers, which are not used.",
    "optimizer.params.torch_adam": "belongs to DeepSpeed's optimizers, which are not used.",
    "optimizer.params.adam_w_mode": "belongs to DeepSpeed's optimizers, which are not used; adamw is AdamW.",
    "torch_autocast": "is set from precision.compute.",
    "zero_allow_untested_optimizer": _OWN,
    "zero_force_ds_cpu_optimizer": "selects DeepSpeed's CPU optimizer, which is not used.",
    "managed_gradient_accumulation": _BATCHES,
    "gradient_allreduce_op": "is set by Trainbook: gradients are of the sum over all targets of the global batch.",
    "data_types": "is set from precision.compute and precision.weights.",
    "activation_checkpointing": "is not used: set memory.gradient_checkpointing.",
    "compile": "is not used: memory.compile is off with deepspeed.",
    "checkpoint": "belongs to DeepSpeed's checkpoints; runs are saved according to checkpoint.*.",
    "datastates": "belongs to DeepSpeed's checkpoints; runs are saved according to checkpoint.*.",
    "data_efficiency": _DATA,
    "dataloader_drop_last": _DATA,
    "autotuning": "starts training runs by itself, which `trainbook train` does not allow.",
    "hybrid_engine": "is for reinforcement learning with generation, which is not supported.",
    "pipeline": _LAID_OUT,
    "tensor_parallel": _LAID_OUT,
    "expert_parallel": _LAID_OUT,
    "sequence_parallel_size": _LAID_OUT,
    "data_parallel_size": _LAID_OUT,
    "seq_parallel_communication_data_type": _LAID_OUT,
    "use_data_before_expert_parallelism": _LAID_OUT,
    "weight_quantization": "changes weights in a way that Trainbook's checkpoints do not support.",
    "disable_allgather": "would leave ranks without the weights that other ranks updated.",
    "zero_optimization": "must be an object.",
    "optimizer": "must be an object.",
    "optimizer.params": "must be an object.",
    "fp16": "must be an object.",
    "bf16": "must be an object.",
}

ZERO_PASSED = (
    "allgather_bucket_size",
    "allgather_partitions",
    "contiguous_gradients",
    "enable_sanity_checks",
    "ignore_unused_parameters",
    "leaf_module",
    "log_trace_cache_warnings",
    "memory_efficient_linear",
    "overlap_comm",
    "override_module_apply",
    "parameter_alignment",
    "reduce_scatter",
    "round_robin_gradients",
    "stage3_allgather_sequential",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_model_persistence_threshold",
    "stage3_module_granularity_threshold",
    "stage3_param_persistence_threshold",
    "stage3_prefetch_bucket_size",
    "stage3_use_all_reduce_for_fetch_params",
    "sub_group_size",
    "use_multi_rank_bucket_allreduce",
)

_SAVED = "belongs to DeepSpeed's checkpoints; runs are saved according to checkpoint.*."
_ROUNDS = "rounds the communication between ranks: losses would differ from those of one device."

ZERO_REFUSED = {
    "compute_grad_norm": "cannot be set: the guard needs the gradient norm, so it is always computed.",
    "cpu_offload": "is an old name: set distributed.offload_optimizer.",
    "cpu_offload_param": "is an old name: set distributed.offload_parameters.",
    "cpu_offload_use_pin_memory": "is an old name: use offload_optimizer.pin_memory.",
    "elastic_checkpoint": _SAVED,
    "gather_16bit_weights_on_model_save": _SAVED,
    "stage3_gather_16bit_weights_on_model_save": _SAVED,
    "stage3_gather_fp16_weights_on_model_save": _SAVED,
    "load_from_fp32_weights": _SAVED,
    "pipeline_loading_checkpoint": _SAVED,
    "legacy_stage1": "belongs to an older version of DeepSpeed.",
    "save_muon_momentum_buffer_in_memory": "belongs to DeepSpeed's Muon, which is not used.",
    "zenflow": "applies delayed updates with its own optimizer, which the guard cannot judge.",
    "zero_hpz_partition_size": "keeps a second copy of the weights that Trainbook's checkpoints do not support.",
    "zero_quantized_gradients": _ROUNDS,
    "zero_quantized_nontrainable_weights": _ROUNDS,
    "zero_quantized_weights": _ROUNDS,
    "offload_optimizer": "must be an object with a device.",
    "offload_param": "must be an object with a device.",
}


KNOB = "distributed.deepspeed_config"
AUTO = "auto"  # filled in by the knobs; of what is no knob, by DeepSpeed
BYTES_OF_A_GRADIENT = 4  # they are fp32


@dataclass(frozen=True)
class SharedSetting:
    """What both the file and the knobs say."""

    key: str  # in the file
    knob: str
    value: Callable[[Config], Any]  # as the file would have it
    means: Callable[[Any], Any] = lambda given: given  # what the file's value is in our words


SHARED = (
    SharedSetting("gradient_clipping", "batch.max_grad_norm", lambda config: config.batch.max_grad_norm or 0.0),
    SharedSetting("zero_optimization.stage", "distributed.zero_stage", lambda config: config.distributed.zero_stage),
    SharedSetting(
        "zero_optimization.offload_optimizer.device",
        "distributed.offload_optimizer",
        lambda config: config.distributed.offload_optimizer,
    ),
    SharedSetting(
        "zero_optimization.offload_param.device",
        "distributed.offload_parameters",
        lambda config: config.distributed.offload_parameters,
    ),
    SharedSetting(
        "optimizer.type",
        "optimizer.type",
        lambda config: config.optimizer.type,
        lambda given: OPTIMIZERS.get(str(given).lower(), given),
    ),
    SharedSetting("optimizer.params.lr", "optimizer.learning_rate", lambda config: config.optimizer.learning_rate),
    SharedSetting(
        "optimizer.params.betas", "optimizer.beta1", lambda config: [config.optimizer.beta1, config.optimizer.beta2]
    ),
    SharedSetting("optimizer.params.eps", "optimizer.epsilon", lambda config: config.optimizer.epsilon),
    SharedSetting(
        "optimizer.params.weight_decay", "optimizer.weight_decay", lambda config: config.optimizer.weight_decay
    ),
    SharedSetting("optimizer.params.momentum", "optimizer.momentum", lambda config: config.optimizer.momentum),
    SharedSetting("fp16.enabled", "precision.compute", lambda config: config.precision.compute == "fp16"),
)
BUCKET = SharedSetting(
    "zero_optimization.reduce_bucket_size", "distributed.bucket_mb", lambda config: bucket_numbers(config)
)
COMPUTE = SharedSetting("bf16.enabled", "precision.compute", lambda config: config.precision.compute == "bf16")
# What must be known besides: the number of processes.
BATCH = (
    SharedSetting("train_batch_size", "batch.global_batch_size", lambda config: None),
    SharedSetting("train_micro_batch_size_per_gpu", "batch.per_device_train_batch_size", lambda config: None),
    SharedSetting("gradient_accumulation_steps", "batch.gradient_accumulation_steps", lambda config: None),
)
SAID_TWICE = {each.key: each for each in (*SHARED, BUCKET, COMPUTE, *BATCH)}


def bucket_numbers(config: Config) -> int:
    return max(1, int(config.distributed.bucket_mb * 2**20 / BYTES_OF_A_GRADIENT))


def read(config: Config) -> dict[str, Any]:
    """The file's settings by dotted keys; nothing where there is no file."""
    named = config.distributed.deepspeed_config
    return {} if named is None else dict(_flat(_parsed(Path(named).expanduser())))


def _parsed(path: Path) -> dict[str, Any]:
    try:
        found = json_text.loads(read_file(path), str(path))
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # as in "Unterminated string starting at"
        raise UserError(f"{path}:{error.lineno}: is not JSON: {what} at column {error.colno}.") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: must be a JSON object, but got {show(found)}.")
    return found


def _flat(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Only blocks that are looked into are taken apart."""
    for key, value in block.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name in TAKEN_APART:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def problems(config: Config) -> list[Problem]:
    """Everything in the file that is unknown, cannot be honoured, or says otherwise than the knobs.

    What depends on the number of processes is for `batch_problems`.
    """
    try:
        given = read(config)
    except UserError as error:
        return [Problem(str(config.distributed.deepspeed_config), KNOB, str(error))]
    found: list[Problem] = []
    for key, value in given.items():
        reason = _refusal(key, value)
        if reason is not None:
            found.append(_problem(config, key, reason))
    for each in SHARED:
        found += _disagreement(config, given, each, each.value(config))
    if config.distributed.bucket_mb != by_path()["distributed.bucket_mb"].field.default:
        found += _disagreement(config, given, BUCKET, BUCKET.value(config))
    if config.precision.compute != AUTO:
        found += _disagreement(config, given, COMPUTE, COMPUTE.value(config))
    return found


def must_agree(config: Config, world: int, compute: str) -> None:
    """What could be judged only now: batch sizes over so many processes, and the type that `auto` has become."""
    given = read(config)
    shape = batch_shape(config, world)
    values = (shape.global_batch, shape.micro_batch, shape.accumulation)
    found = [
        problem
        for each, value in zip(BATCH, values, strict=True)
        for problem in _disagreement(config, given, each, value)
    ]
    found += _disagreement(config, given, COMPUTE, compute == "bf16")
    if found:
        raise ConfigError(found)


def passed_on(config: Config) -> dict[str, Any]:
    """What only DeepSpeed knows, and a bucket size that no knob was given for."""
    answer: dict[str, Any] = {}
    for key, value in read(config).items():
        is_bucket = key == BUCKET.key
        if value == AUTO or (key in SAID_TWICE and not is_bucket) or key.startswith(("optimizer", "fp16", "bf16")):
            continue
        if is_bucket and config.distributed.bucket_mb != by_path()["distributed.bucket_mb"].field.default:
            continue
        *above, last = key.split(".")
        block = answer
        for name in above:
            block = block.setdefault(name, {})
        block[last] = value
    return answer


def _refusal(key: str, value: Any) -> str | None:
    """Why the engine cannot be told this; None: it can."""
    block, _, name = key.rpartition(".")
    if key in REFUSED:
        return REFUSED[key]
    if key in SAID_TWICE or key in PASSED:
        return None
    if block == "zero_optimization":
        if name in ZERO_REFUSED:
            return ZERO_REFUSED[name]
        return None if name in ZERO_PASSED else _unknown(name, [*ZERO_PASSED, "stage", "reduce_bucket_size"])
    if block in ("zero_optimization.offload_optimizer", "zero_optimization.offload_param"):
        return None if name == "pin_memory" else "is not supported with offloading to host memory."
    if block == "fp16":
        return None  # of no effect while fp16.enabled is false, which it must be
    if block:
        return _unknown(name, [each.key.rpartition(".")[2] for each in SHARED if each.key.startswith(block)])
    return _unknown(key, [*PASSED, *(each.split(".")[0] for each in SAID_TWICE)])


def _unknown(name: str, known: list[str]) -> str:
    return f"is not a setting that is passed to DeepSpeed.{did_you_mean(name, known)}"


def _disagreement(config: Config, given: Mapping[str, Any], shared: SharedSetting, value: Any) -> list[Problem]:
    said = given.get(shared.key, AUTO)
    if said == AUTO or _equal(shared.means(said), value):
        return []
    own = show(config.get(shared.knob))
    derived = "" if _equal(config.get(shared.knob), value) else f", which gives {show(value)}"
    return [_problem(config, shared.key, f"is {show(said)}, but {shared.knob} is {own}{derived}.")]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, bool) or isinstance(other, bool) or isinstance(one, str) or isinstance(other, str):
        return one == other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other


def _problem(config: Config, key: str, message: str) -> Problem:
    return Problem(str(config.distributed.deepspeed_config), key, message)
