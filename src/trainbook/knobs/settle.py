"""What follows from a lawful configuration: remarks, and knobs that others have settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import gcd
from typing import Any

from trainbook.errors import ConfigError
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Config
from trainbook.knobs.derive import USUAL_WARMUP, Duration, batch_shape, default_heads, has_windows, task_name
from trainbook.knobs.formats import OF_TYPE, nearest_format, objections_to_writing
from trainbook.knobs.laws import LAWS, LENGTHS, Law, Settings, without_validation_data
from trainbook.knobs.origin import Origin
from trainbook.knobs.values import show

NO_VALIDATION_DATA = "there is no validation data (data.validation_ratio is 0, data.validation is not set)"


# Defaults are AdamW's and SGD's; where nobody chose a value, these optimizers have usual ones of their own.
USUAL_WITH: Mapping[str, Mapping[str, float]] = {"lion": {"beta2": 0.99}, "muon": {"momentum": 0.95}}


def settle(s: Settings) -> tuple[Config, dict[str, Origin]]:
    """Without data to judge by, there is no evaluation; and what is usual with the optimizer."""
    config, origins = s.config, s.origins
    if _evaluation_goes_off(s):
        # Its cadence goes with it: a cadence of nothing is refused when the configuration is read again.
        off = {"eval_strategy": "no"} | ({"eval_steps": None} if config.evaluation.eval_steps is not None else {})
        config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update=off)})
        origins = origins | {f"evaluation.{name}": Origin("derived", NO_VALIDATION_DATA) for name in off}
    kind = config.optimizer.type
    usual = {
        name: value
        for name, value in USUAL_WITH.get(kind, {}).items()
        if origins[f"optimizer.{name}"].kind == "default"
    }
    if usual:
        config = config.model_copy(update={"optimizer": config.optimizer.model_copy(update=usual)})
        origins = origins | {f"optimizer.{name}": Origin("derived", f"usual with {kind}") for name in usual}
    return config, origins


def _evaluation_goes_off(s: Settings) -> bool:
    return without_validation_data(s) and s.get("evaluation.eval_strategy") != "no"


def notices(s: Settings) -> list[str]:
    """Settings that do nothing, or less than one may think; the run goes on."""
    found: list[tuple[tuple[str, ...], str]] = []
    if has_windows(s.config):
        for path in ("data.padding", "data.truncation", "data.truncation_side"):
            if s.is_set(path):
                found.append(((path,), "has no effect, because data.samples is windows: all have the same length."))
    elif s.get("data.padding") == "bucketed" and not s.get("data.shuffle"):
        remark = "bucketed has no effect, because data.shuffle is false: samples stay in the order of the source."
        found.append((("data.padding", "data.shuffle"), remark))
    if s.is_set("data.validation_ratio") and s.get("data.validation_ratio") and s.get("data.validation") is not None:
        remark = "has no effect, because data.validation is set: all of data.source is trained on."
        found.append((("data.validation_ratio", "data.validation"), remark))
    if s.get("memory.gradient_checkpointing") == "selective" and s.get("model.type") == "hf":
        remark = "selective is the same as full with model.type hf, whose blocks are recomputed whole."
        found.append((("memory.gradient_checkpointing", "model.type"), remark))
    found += _no_export(s)
    found += _rate_from_scratch(s)
    eval_steps, steps = s.get("evaluation.eval_steps"), s.get("training.max_steps")
    if eval_steps is not None and steps is not None and eval_steps > steps:
        remark = f"{eval_steps} is more than the {steps} steps of the run, which is evaluated only at its end."
        found.append((("evaluation.eval_steps", "training.max_steps"), remark))
    if _evaluation_goes_off(s):
        found.append(
            (("evaluation.eval_strategy", "data.validation_ratio"), f"evaluation is off: {NO_VALIDATION_DATA}.")
        )
    return [f"{s.place(*paths)}  {paths[0]}: {remark}" for paths, remark in found]


def _no_export(s: Settings) -> list[tuple[tuple[str, ...], str]]:
    """Of a model that somebody chose and no format of transformers can hold: better known before training."""
    candidates = OF_TYPE.get(s.config.model.type)
    if candidates is None or ":" in task_name(s.config):
        return []
    form, needed = nearest_format(s.config, candidates, s.is_written)
    in_the_way = {path for name in candidates for path in objections_to_writing(name, s.config)}
    if not needed or not any(s.is_written(path) for path in ("model.type", *in_the_way)):
        return []
    changes = [f"{path}{' ' if ' ' in values[0] else '='}{values[0]}" for path, values in needed.items()]
    remark = f"this model cannot be exported to transformers; as {form} it can, with {', '.join(changes)}."
    return [((*needed, "model.type", *sorted(in_the_way)), remark)]


def _rate_from_scratch(s: Settings) -> list[tuple[tuple[str, ...], str]]:
    """A pretrained model, trained whole at a learning rate that nobody chose. Adapters and T5 take as much."""
    model, rate = s.config.model, by_path()["optimizer.learning_rate"]
    if model.pretrained is None or model.lora_rank is not None or model.type == "t5":
        return []
    if s.origins["optimizer.learning_rate"].kind != "default" or "adamw" not in s.config.optimizer.type:
        return []
    usual = next(case.value for case in rate.knob.cases if case.when == "fine-tuning all weights")
    remark = f"the default, {show(rate.field.default)}, is for training from scratch; to fine-tune all weights of a "
    remark += f"model as large as BERT, {show(usual)} is usual, and tiny models need more."
    return [(("optimizer.learning_rate", "model.pretrained"), remark)]


# What an override makes idle or impossible in a file or a recipe gives way to it, each with a notice.


WARMUP, RATIO, DECAY = "schedule.warmup_steps", "schedule.warmup_ratio", "schedule.decay_ratio"
SIZE, MICRO, ACCUMULATION = (
    f"batch.{name}" for name in ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
)
WIDTH, HEADS, KEY_VALUE_HEADS = (
    f"model.{name}" for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
)


class GivingWay:
    """Settings from which one value after the other is replaced; with a notice for each."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.notices: list[str] = []

    def set(self, path: str, value: Any, reason: str, *because_of: str) -> None:
        old = self.settings.show(path)
        self.notices.append(f"{self.settings.place(path, *because_of)}  {path} {old} -> {show(value)}: {reason}.")
        self.settings = self.settings.having(path, value, reason)


def give_way(settings: Settings, base_length: Duration | None, refused: set[str]) -> tuple[Settings, list[str]]:
    """The settings after values of lower layers gave way, and what is to be said about it.

    `base_length` is the length that the file or recipe states, `refused` are paths without a value to be judged.
    """
    result = GivingWay(settings)
    rules: tuple[tuple[tuple[str, ...], Callable[[], None]], ...] = (
        ((HEADS, WIDTH, KEY_VALUE_HEADS, "model.head_width", "model.position"), lambda: _heads(result)),
        ((SIZE, MICRO, ACCUMULATION), lambda: _batch(result)),
        ((WARMUP, RATIO, DECAY, *LENGTHS, SIZE, MICRO, ACCUMULATION), lambda: _warmup(result, base_length)),
    )
    for paths, rule in rules:
        if not refused.intersection(paths):
            rule()
    for law in LAWS:
        if law.yields and not refused.intersection(law.paths):
            _law(result, law)
    return result.settings, result.notices


def _law(result: GivingWay, law: Law) -> None:
    for paths, message, _ in list(law.check(result.settings)):
        if not result.settings.gives_way(*paths):
            continue
        idle = result.settings.idle(paths[0])
        if all(still[0][0] != paths[0] for still in law.check(idle)):  # it may stay, and does nothing
            result.notices.append(f"{idle.place(*paths)}  {paths[0]}: {message}")
            result.settings = idle
        else:
            result.set(paths[0], by_path()[paths[0]].field.default, message.removesuffix("."), *paths[1:])


def default_heads_of(settings: Settings) -> Settings:
    """Where nobody chose the number of heads, it follows from the width."""
    width = settings.get(WIDTH)
    heads = default_heads(width, settings.get("model.head_width"))
    if settings.origins[HEADS].kind != "default" or heads == settings.get(HEADS):
        return settings
    return settings.having(HEADS, heads, f"heads of {settings.get('model.head_width') or width // heads}")


def _heads(result: GivingWay) -> None:
    s = result.settings
    width, heads = s.get(WIDTH), s.get(HEADS)
    follows = s.gives_way(HEADS, WIDTH) and s.get("model.head_width") is None and s.get("model.type") != "hf"
    is_odd = s.get("model.position") == "rotary" and (width // heads) % 2
    if not follows or not (width % heads or is_odd):
        return
    result.set(HEADS, default_heads(width), f"model.hidden_size is {width}", WIDTH)
    shared, heads = s.get(KEY_VALUE_HEADS), result.settings.get(HEADS)
    if shared is not None and heads % shared and s.gives_way(KEY_VALUE_HEADS, WIDTH):
        result.set(KEY_VALUE_HEADS, gcd(heads, shared), f"model.num_attention_heads is {heads}", WIDTH)


def _batch(result: GivingWay) -> None:
    """The part of the batch that nobody overrode follows from the others, on any number of devices."""
    s = result.settings
    size, micro, accumulation = (s.get(path) for path in (SIZE, MICRO, ACCUMULATION))
    if size and micro and accumulation and s.gives_way(ACCUMULATION, SIZE, MICRO):
        result.set(ACCUMULATION, None, f"it follows from {SIZE} {size}", SIZE, MICRO)
    elif size and micro and accumulation and s.gives_way(MICRO, SIZE, ACCUMULATION):
        result.set(MICRO, None, f"it follows from {SIZE} {size}", SIZE, ACCUMULATION)
    s = result.settings
    for path in (MICRO, ACCUMULATION):
        part = s.get(path)
        if size and part and size % part and s.gives_way(path, SIZE):
            result.set(path, None, f"{SIZE} {size} is not a multiple of it", SIZE)


def _warmup(result: GivingWay, base_length: Duration | None) -> None:
    """A warm-up in steps that was chosen for a longer run takes the same share of a shorter one."""
    s = result.settings
    warmup, total = s.get(WARMUP), _steps(s.config)
    if not warmup or total is None or not s.gives_way(WARMUP, *LENGTHS):
        return
    decay = s.get(DECAY) if s.get("schedule.type") == "warmup_stable_decay" else 0
    if warmup < total and warmup + decay * total <= total + 1e-9:
        return
    base = None if base_length is None else _steps(_lasting(s.config, base_length))
    share = Fraction(warmup, base) if base is not None and base > warmup else USUAL_WARMUP
    scaled = min(max(1, round(total * share)), total - 1, int(total - decay * total))
    result.set(WARMUP, scaled, f"the run has {total:,} {'step' if total == 1 else 'steps'}", *LENGTHS)


def _steps(config: Config) -> int | None:
    """The updates of the run where they are known without the data."""
    length = Duration.of(config)
    if length is None or length.unit == "epochs" or (length.unit == "tokens" and not has_windows(config)):
        return None
    try:
        return length.steps(0, batch_shape(config).global_batch, config.data.max_seq_length)
    except ConfigError:
        return None  # a batch that cannot be divided is a problem of its own


def _lasting(config: Config, length: Duration) -> Config:
    stated = dict.fromkeys((path.split(".")[1] for path in LENGTHS), None)
    name = {"steps": "max_steps", "epochs": "num_train_epochs", "tokens": "max_tokens"}[length.unit]
    training = config.training.model_copy(update={**stated, name: length.value})
    return config.model_copy(update={"training": training})
