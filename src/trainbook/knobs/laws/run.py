"""The length of the run, the schedule over it, and the batch."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.knobs.laws.registry import Broken, Settings, law, no_effect, no_effect_with
from trainbook.knobs.values import show

LENGTHS = ("training.max_steps", "training.num_train_epochs", "training.max_tokens")


@law(*LENGTHS)
def one_length(s: Settings) -> Iterator[Broken]:
    """The length is one of training.max_steps, training.num_train_epochs and training.max_tokens."""
    yield from _only_one(s, LENGTHS, "the length of the run is set")


@law("schedule.warmup_steps", "schedule.warmup_ratio")
def one_warmup(s: Settings) -> Iterator[Broken]:
    """The warm-up is either schedule.warmup_steps or schedule.warmup_ratio."""
    yield from _only_one(s, ("schedule.warmup_steps", "schedule.warmup_ratio"), "the warm-up is set")


def _only_one(s: Settings, paths: tuple[str, ...], what: str) -> Iterator[Broken]:
    given = tuple(path for path in paths if s.get(path) is not None)
    if len(given) > 1:
        values = " and ".join(f"{path} = {show(s.get(path))}" for path in given)
        times = "twice" if len(given) == 2 else "three times"
        yield given, f"{what} {times}, by {values}.", "Keep one and set the others to null."


@law("schedule.warmup_steps", "training.max_steps")
def warmup_ends_before_the_run(s: Settings) -> Iterator[Broken]:
    """schedule.warmup_steps is less than training.max_steps."""
    paths = ("schedule.warmup_steps", "training.max_steps")
    warmup, steps = s.get(paths[0]), s.get(paths[1])
    if warmup is not None and steps is not None and warmup >= steps:
        yield paths, f"must be less than {paths[1]}, but {warmup} is not less than {steps}.", ""


@law("schedule.type", "schedule.warmup_steps", "schedule.warmup_ratio", "schedule.decay_ratio", "training.max_steps")
def warmup_and_decay_fit_into_the_run(s: Settings) -> Iterator[Broken]:
    """With warmup_stable_decay, warm-up and decay together are no longer than the run."""
    if s.get("schedule.type") != "warmup_stable_decay":
        return
    decay, ratio, steps = (
        s.get(path) for path in ("schedule.decay_ratio", "schedule.warmup_ratio", "training.max_steps")
    )
    warmup_steps = s.get("schedule.warmup_steps")
    if ratio is not None and ratio + decay > 1 + 1e-9:
        paths = ("schedule.decay_ratio", "schedule.warmup_ratio")
        sum_of_both = f"{show(ratio)} + {show(decay)} = {show(round(ratio + decay, 6))}"
        yield paths, f"warm-up and decay must fit into the run, but warmup_ratio + decay_ratio is {sum_of_both}.", ""
    elif warmup_steps is not None and steps is not None and warmup_steps < steps < warmup_steps + decay * steps - 1e-9:
        paths = ("schedule.decay_ratio", "schedule.warmup_steps", "training.max_steps")
        needed = f"{warmup_steps} + {show(decay)} x {steps} = {show(round(warmup_steps + decay * steps, 3))}"
        yield paths, f"warm-up and decay must fit into the {steps} steps of the run, but take {needed}.", ""


BATCH = ("batch.global_batch_size", "batch.per_device_train_batch_size", "batch.gradient_accumulation_steps")


@law(*BATCH)
def batch_divides(s: Settings) -> Iterator[Broken]:
    """global_batch_size = per_device_train_batch_size x gradient_accumulation_steps x the number of devices."""
    size, micro, accumulation = (s.get(path) for path in BATCH)
    if size is None:
        return
    given = tuple(path for path in BATCH if s.get(path) is not None)
    parts = (micro or 1) * (accumulation or 1)
    if size % parts:
        names = " x ".join(path.split(".")[1] for path in given[1:])
        product = f"{micro} x {accumulation} = {parts}" if micro and accumulation else f"{parts}"
        yield given, f"must be a multiple of {names}, but {size} is not a multiple of {product}.", ""


no_effect("schedule.num_cycles", "schedule.type", "cosine_with_restarts")
no_effect("schedule.power", "schedule.type", "polynomial")
no_effect("schedule.decay_ratio", "schedule.type", "warmup_stable_decay")
no_effect("schedule.decay_shape", "schedule.type", "warmup_stable_decay")
for _path in ("find_unused_parameters", "sync_batch_norm"):
    no_effect(f"distributed.{_path}", "distributed.strategy", "auto", "ddp")
no_effect("distributed.bucket_mb", "distributed.strategy", "auto", "ddp", "deepspeed")
for _path in ("shard_over", "reshard_after_forward", "sync_each_batch", "gather_dtype"):
    no_effect(f"distributed.{_path}", "distributed.strategy", "fsdp")
no_effect("distributed.reduce_dtype", "distributed.strategy", "auto", "ddp", "fsdp")
no_effect_with("distributed.gather_dtype", "precision.compute", "fp32")
no_effect_with("distributed.timeout", "distributed.strategy", "single")

# Their updates depend on a whole matrix, or on blocks of it, of which a rank has only a slice.
NEED_WHOLE_TENSORS = ("adamw_8bit", "muon", "paged_adamw_8bit")


@law("distributed.strategy", "optimizer.type")
def optimizer_can_work_on_slices(s: Settings) -> Iterator[Broken]:
    """With distributed.strategy fsdp the optimizer works on shards of tensors: adamw, stable_adamw, lion or sgd."""
    paths = ("distributed.strategy", "optimizer.type")
    if s.get(paths[0]) == "fsdp" and s.get(paths[1]) in NEED_WHOLE_TENSORS:
        message = (
            f"must be adamw, stable_adamw, lion or sgd with fsdp, which shards tensors, but got {s.show(paths[1])}."
        )
        yield paths[::-1], message, "Or use distributed.strategy=ddp."


@law("distributed.strategy", "precision.weights", "model.lora_rank")
def sharded_weights_are_of_one_type(s: Settings) -> Iterator[Broken]:
    """With distributed.strategy fsdp the weights that are trained are fp32: precision.weights is fp32, or there are
    adapters, which always are."""
    paths = ("distributed.strategy", "precision.weights", "model.lora_rank")
    if s.get(paths[0]) == "fsdp" and s.get(paths[1]) != "fp32" and s.get(paths[2]) is None:
        message = (
            "must be fp32 with fsdp, because norms cannot stay in fp32 beside 16-bit shards, but got "
            f"{s.show(paths[1])}."
        )
        hint = "distributed.gather_dtype=compute gathers weights in 16 bits; or use distributed.strategy=ddp."
        yield paths[1::-1], message, hint


@law("distributed.strategy", "model.quantize_base")
def packed_weights_are_not_cut(s: Settings) -> Iterator[Broken]:
    """With distributed.strategy fsdp the base weights are not quantized: model.quantize_base is none."""
    paths = ("distributed.strategy", "model.quantize_base")
    if s.get(paths[0]) == "fsdp" and s.get(paths[1]) != "none":
        yield paths[::-1], f"quantized weights cannot be sharded, but got {s.show(paths[1])} with fsdp.", ""


@law("distributed.sync_batch_norm", "training.device", yields=True)
def batch_norms_meet_on_gpus(s: Settings) -> Iterator[Broken]:
    """distributed.sync_batch_norm needs GPUs."""
    paths = ("distributed.sync_batch_norm", "training.device")
    if s.get(paths[0]) and s.get(paths[1]) == "cpu":
        yield paths, "needs GPUs, but training.device is 'cpu'.", ""
