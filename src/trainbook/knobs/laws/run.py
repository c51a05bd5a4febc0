"""The length of the run, the schedule over it, and the batch."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.knobs.deepspeed.contract import ALL, CONTRACT, STRATEGY, Clause
from trainbook.knobs.deepspeed.file import problems
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
no_effect_with("precision.products", "model.quantize_base", "4bit", "8bit")
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


@law("precision.products", "precision.compute", "precision.weights")
def fp8_stands_beside_bf16(s: Settings) -> Iterator[Broken]:
    """With precision.products fp8 everything else is computed in bf16: precision.compute is bf16, or auto without fp16
    weights."""
    paths = ("precision.products", "precision.compute", "precision.weights")
    if s.get(paths[0]) != "fp8":
        return
    if s.get(paths[1]) not in ("auto", "bf16"):
        yield paths[1::-1], f"must be bf16 or auto with fp8 products, but got {s.show(paths[1])}.", ""
    elif s.get(paths[2]) == "fp16":
        yield paths[::-2], f"must be fp32 or bf16 with fp8 products, but got {s.show(paths[2])}.", ""


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


# What DeepSpeed's engine honours, and what a DeepSpeed file may say: see knobs/deepspeed.


for _path in ("zero_stage", "offload_optimizer", "offload_parameters", "deepspeed_config"):
    no_effect(f"distributed.{_path}", STRATEGY, "deepspeed")
no_effect("distributed.offload_parameters", "distributed.zero_stage", 3)


def _register(clause: Clause) -> None:
    values = " or ".join(show(each) for each in clause.honoured)

    def check(s: Settings) -> Iterator[Broken]:
        if s.get(STRATEGY) == "deepspeed" and s.get(clause.path) not in clause.honoured:
            message = f"must be {values} with deepspeed: {clause.why_not}. But got {s.show(clause.path)}."
            yield (clause.path, STRATEGY), message, ""

    check.__doc__ = f"With distributed.strategy deepspeed, {clause.path} is {values}: {clause.why_not}."
    law(clause.path, STRATEGY)(check)


for _clause in CONTRACT:
    if _clause.honoured != ALL:
        _register(_clause)

OFFLOADING = ("distributed.offload_optimizer", "distributed.offload_parameters")


@law(*OFFLOADING, "training.device", yields=True)
def there_is_something_to_offload_from(s: Settings) -> Iterator[Broken]:
    """distributed.offload_optimizer and distributed.offload_parameters need GPUs."""
    for path in OFFLOADING:
        if s.get(path) != "none" and s.get("training.device") == "cpu":
            message = "needs GPUs: with training.device 'cpu' everything is in host memory already."
            yield (path, "training.device"), message, ""


@law("distributed.deepspeed_config", STRATEGY)
def the_file_agrees(s: Settings) -> Iterator[Broken]:
    """Settings in distributed.deepspeed_config are known, supported, and consistent with the knobs."""
    if s.get(STRATEGY) != "deepspeed":
        return
    for problem in problems(s.config):
        key = "" if problem.name == "distributed.deepspeed_config" else f"{problem.where}: {problem.name} "
        yield ("distributed.deepspeed_config", STRATEGY), f"{key}{problem.message}", problem.hint


# What is judged, by which data, and when.


WANTS_EVALUATION = (
    "evaluation.early_stopping_patience",
    "evaluation.metric_for_best_model",
    "evaluation.prompts",
)


@law("evaluation.eval_strategy", *WANTS_EVALUATION, yields=True)
def judging_needs_evaluation(s: Settings) -> Iterator[Broken]:
    """Early stopping, the choice of a metric and prompts need evaluation: evaluation.eval_strategy is not no."""
    if s.get("evaluation.eval_strategy") != "no":
        return
    for path in WANTS_EVALUATION:
        if s.is_set(path):
            yield (path, "evaluation.eval_strategy"), "needs evaluation, but evaluation.eval_strategy is 'no'.", ""


@law("evaluation.eval_strategy", "data.validation_ratio", "data.validation", *WANTS_EVALUATION, yields=True)
def evaluation_needs_data(s: Settings) -> Iterator[Broken]:
    """Evaluation needs data.validation_ratio > 0 or a data.validation source."""
    if not without_validation_data(s) or s.get("evaluation.eval_strategy") == "no":
        return
    asking = [path for path in WANTS_EVALUATION if s.is_set(path)]
    if s.is_written("evaluation.eval_strategy"):
        asking.insert(0, "evaluation.eval_strategy")
    message = "needs validation data, but data.validation_ratio is 0 and data.validation is not set."
    for path in asking:
        yield (path, "data.validation_ratio"), message, ""


def without_validation_data(s: Settings) -> bool:
    return s.get("data.validation_ratio") == 0 and s.get("data.validation") is None


JUDGED_AS_TEXT = ("exact_match", "word_error_rate", "phoneme_error_rate")


@law("evaluation.metric_for_best_model", "evaluation.generate", "evaluation.target_unit", yields=True)
def written_text_is_judged_where_it_is_written(s: Settings) -> Iterator[Broken]:
    """exact_match and error rates need evaluation.generate; phoneme_error_rate also target_unit phonemes."""
    metric, path = s.get("evaluation.metric_for_best_model"), "evaluation.metric_for_best_model"
    if metric not in JUDGED_AS_TEXT:
        return
    if not s.get("evaluation.generate"):
        yield (path, "evaluation.generate"), f"{metric} needs evaluation.generate, but that is off.", ""
    elif metric == "phoneme_error_rate" and s.get("evaluation.target_unit") != "phonemes":
        unit = s.show("evaluation.target_unit")
        message = f"{metric} needs evaluation.target_unit 'phonemes', but that is {unit}."
        yield (path, "evaluation.target_unit"), message, ""


no_effect("evaluation.eval_steps", "evaluation.eval_strategy", "steps")
no_effect("evaluation.num_beams", "evaluation.generate", True)
no_effect("evaluation.target_unit", "evaluation.generate", True)


@law("evaluation.max_new_tokens", "evaluation.generate", "evaluation.prompts", yields=True)
def only_generated_text_has_a_length(s: Settings) -> Iterator[Broken]:
    """evaluation.max_new_tokens has an effect only with evaluation.generate or evaluation.prompts."""
    path = "evaluation.max_new_tokens"
    if s.is_set(path) and not s.get("evaluation.generate") and not s.get("evaluation.prompts"):
        message = "has no effect unless evaluation.generate is on or evaluation.prompts is set."
        yield (path, "evaluation.generate"), message, ""


# How an update is made: the optimizer, clipping, number types.


no_effect("optimizer.momentum", "optimizer.type", "sgd", "muon")
no_effect_with("optimizer.beta1", "optimizer.type", "sgd")
no_effect_with("optimizer.beta2", "optimizer.type", "sgd")
no_effect_with("optimizer.epsilon", "optimizer.type", "sgd", "lion")
no_effect("batch.zclip_threshold", "batch.clipping", "zclip")
no_effect("batch.zclip_alpha", "batch.clipping", "zclip")
no_effect("precision.loss_scale", "precision.compute", "fp16")
no_effect("precision.initial_scale_power", "precision.compute", "fp16")
no_effect("precision.growth_interval", "precision.compute", "fp16")


@law("precision.weights", "model.lora_rank", yields=True)
def only_frozen_weights_are_fp16(s: Settings) -> Iterator[Broken]:
    """precision.weights fp16 needs model.lora_rank: trained fp16 weights lose updates and overflow."""
    if s.get("precision.weights") == "fp16" and s.get("model.lora_rank") is None:
        message = (
            "fp16 is only for frozen weights, so it needs model.lora_rank: trainable fp16 weights lose updates "
            "and overflow."
        )
        hint = "For fp16 training use precision.compute=fp16 with fp32 weights."
        yield ("precision.weights", "model.lora_rank"), message, hint


@law("precision.weights", "optimizer.type", "optimizer.beta2", "model.lora_rank")
def narrow_averages_still_move(s: Settings) -> Iterator[Broken]:
    """With precision.weights bf16, AdamW's second moment is bf16 too: beta2 above .996 rounds its updates away."""
    is_narrow = s.get("precision.weights") == "bf16" and s.get("model.lora_rank") is None
    if is_narrow and s.get("optimizer.type") in ("adamw", "muon") and s.get("optimizer.beta2") > 0.996:
        message = (
            f"must be at most 0.996 with precision.weights bf16, but it is {s.show('optimizer.beta2')}: bf16 has 8 "
            "significant bits, and the update of the second moment would be rounded away."
        )
        hint = "Use 0.99 or 0.95, or optimizer.type=stable_adamw, which keeps the second moment in fp32."
        yield ("optimizer.beta2", "precision.weights", "optimizer.type"), message, hint


LARGEST_INDEPENDENT_DECAY = 0.01  # weights would be forgotten within 100 updates


@law("optimizer.weight_decay_mode", "optimizer.weight_decay", "optimizer.learning_rate", "optimizer.type")
def independent_decay_is_small(s: Settings) -> Iterator[Broken]:
    """With weight_decay_mode independent, weight_decay is at most 0.01 per update; sgd has no such mode."""
    if s.get("optimizer.weight_decay_mode") != "independent":
        return
    if s.get("optimizer.type") == "sgd":
        message = (
            "independent does not work with optimizer.type sgd, whose weight decay is part of the gradient and the "
            "momentum."
        )
        yield ("optimizer.weight_decay_mode", "optimizer.type"), message, ""
    decay, rate = s.get("optimizer.weight_decay"), s.get("optimizer.learning_rate")
    if decay > LARGEST_INDEPENDENT_DECAY:
        message = (
            f"must be at most {LARGEST_INDEPENDENT_DECAY} with weight_decay_mode independent, but it is "
            f"{s.show('optimizer.weight_decay')}: each update removes that fraction of every weight, whatever the "
            "learning rate."
        )
        hint = f"Use 1e-4, or {show(float(f'{rate * decay:.3g}'))}: what scaled removes, learning rate x weight_decay."
        yield ("optimizer.weight_decay", "optimizer.weight_decay_mode"), message, hint


@law("precision.loss_scale", "precision.initial_scale_power", "precision.growth_interval", yields=True)
def fixed_scale_does_not_move(s: Settings) -> Iterator[Broken]:
    """A fixed precision.loss_scale has neither an initial_scale_power nor a growth_interval."""
    if s.get("precision.loss_scale") == "dynamic":
        return
    for path in ("precision.initial_scale_power", "precision.growth_interval"):
        if s.is_set(path):
            scale = s.show("precision.loss_scale")
            yield (
                (path, "precision.loss_scale"),
                f"has no effect unless precision.loss_scale is 'dynamic', but that is {scale}.",
                "",
            )


@law("precision.weights", "precision.compute", yields=True)
def narrow_weights_compute_narrowly(s: Settings) -> Iterator[Broken]:
    """precision.weights bf16 or fp16 needs the same precision.compute (or auto)."""
    weights, compute = s.get("precision.weights"), s.get("precision.compute")
    if weights != "fp32" and compute not in (weights, "auto"):
        yield (
            ("precision.weights", "precision.compute"),
            f"{weights} needs precision.compute {weights}, but that is {s.show('precision.compute')}.",
            "",
        )
