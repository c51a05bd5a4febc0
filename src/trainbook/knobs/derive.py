"""What follows from a configuration: numbers that were left open, and numbers that help to judge it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal

from trainbook.errors import ConfigError, Problem
from trainbook.knobs.config import Config
from trainbook.knobs.scaling import Scaling, head_width

# How long a run is, in the unit in which it was stated.


Unit = Literal["steps", "epochs", "tokens"]


@dataclass(frozen=True)
class Duration:
    value: int | float
    unit: Unit

    @classmethod
    def of(cls, config: Config) -> Duration | None:
        training = config.training
        if training.max_steps is not None:
            return cls(training.max_steps, "steps")
        if training.num_train_epochs is not None:
            return cls(training.num_train_epochs, "epochs")
        if training.max_tokens is not None:
            return cls(training.max_tokens, "tokens")
        return None

    def steps(self, samples_per_epoch: int, global_batch: int, tokens_per_sample: int | Fraction) -> int:
        """The number of updates that cover the duration: the last one may reach beyond it."""
        # The decimal that was written, not its nearest binary: 1.1 epochs of 100 samples are 110, not 110.00…01.
        value = Fraction(repr(self.value))
        if self.unit == "steps":
            return ceil(value)
        if self.unit == "epochs":
            return max(1, ceil(value * samples_per_epoch / global_batch))
        return max(1, ceil(value / (global_batch * tokens_per_sample)))

    def __str__(self) -> str:
        number = f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:,g}"
        return f"{number} {self.unit.removesuffix('s') if self.value == 1 else self.unit}"


MICRO_BATCH_TOKENS = 32_768  # enough to keep a device busy, little enough to fit a small model on a small one
DEFAULT_BATCH = 32  # sequences in one update, over all devices
LONGEST_WARMUP = 0.5  # of the run: with a longer one, most of it is trained below the learning rate that was asked for
SHORT_WARMUP = 0.05  # of the run: what is advised in place of one that is too long
USUAL_WARMUP = Fraction(1, 10)  # of the run, where the length that a warm-up was chosen for is unknown


def intermediate_size(config: Config) -> int:
    """As stated, or 4 x the width, with a gate or without."""
    return config.model.intermediate_size or 4 * config.model.hidden_size


def key_value_heads(config: Config) -> int:
    return config.model.num_key_value_heads or config.model.num_attention_heads


USUAL_HEAD_WIDTH = 64


def default_heads(width: int, head_width: int | None = None) -> int:
    """Heads of 64 numbers; where the width is no multiple of 64, of the even divisor that is nearest to it by ratio."""
    wanted = head_width or USUAL_HEAD_WIDTH
    if head_width is not None or width % wanted == 0:
        return max(1, width // wanted)
    # A head wider than 64² is farther off than a head of 1.
    divisors = [part for part in (*range(1, min(width, wanted**2) + 1), width) if width % part == 0]
    fitting = [part for part in divisors if part % 2 == 0] or divisors  # rotary positions turn pairs of numbers
    return width // min(fitting, key=lambda part: max(part / wanted, wanted / part))


def qkv_bias(config: Config) -> bool:
    model = config.model
    return model.bias if model.qkv_bias is None or model.type != "gpt" else model.qkv_bias


def value_layers(config: Config) -> tuple[int, ...]:
    """The layers that add embeddings of their own to their values: every second one, counted from the last."""
    model = config.model
    if model.value_embeddings == "none" or model.type != "gpt":
        return ()
    return tuple(range((model.num_hidden_layers - 1) % 2, model.num_hidden_layers, 2))


def rope_original_positions(config: Config) -> int:
    """The length before rotary positions were scaled."""
    return config.model.rope_original_positions or num_positions(config)


def decoder_layers(config: Config) -> int:
    return config.model.num_decoder_layers or config.model.num_hidden_layers


def max_target_length(config: Config) -> int:
    return config.data.max_target_length or config.data.max_seq_length


def num_positions(config: Config) -> int:
    """Those of the model: a run may train on shorter sequences, and with rotary positions on longer ones."""
    return max(config.model.num_positions or 0, config.data.max_seq_length)


def vocab_rows(config: Config, vocab_size: int) -> int:
    """Rows that are part of the model, whose tokenizer has so many tokens."""
    return max(config.model.vocab_rows or 0, vocab_size)


TASKS = ("auto", "causal", "chat", "masked", "span", "seq2seq", "classify", "classify_many", "regress", "tag")
# What each kind of model can learn. A model of the user's own is asked for logits of every token.
TASKS_OF_MODEL = {
    "gpt": ("causal", "chat"),
    "bert": ("masked", "classify", "classify_many", "regress", "tag"),
    "t5": ("span", "seq2seq"),
    "hf": tuple(task for task in TASKS if task not in ("auto", "span")),
}
TASK_OF_MODEL = {"gpt": "causal", "bert": "masked", "t5": "span", "hf": "causal"}


def task_name(config: Config) -> str:
    """What is learned: as set, or what follows from the data and the kind of the model."""
    if config.training.task != "auto":
        return config.training.task
    if config.data.label_field is not None:
        return "classify"
    if config.data.target_field is not None:
        return "seq2seq" if config.model.type == "t5" else "chat"
    return TASK_OF_MODEL.get(config.model.type, "causal")


TASKS_OF_TEXT = ("causal", "masked", "span")  # what they learn can be cut into windows


def has_windows(config: Config) -> bool:
    """Samples are windows of one length; a record with a label, a target or turns is a sample of its own."""
    name = task_name(config)
    return config.data.samples == "windows" and (name in TASKS_OF_TEXT or ":" in name)


@dataclass(frozen=True)
class BatchShape:
    global_batch: int  # sequences in one update
    micro_batch: int  # sequences in one forward pass on one device
    accumulation: int  # forward passes on each device before an update
    reason: str


def batch_shape(config: Config, world: int = 1) -> BatchShape:
    """How a global batch is cut over devices and forward passes; ConfigError where it cannot be."""
    batch = config.batch
    size, micro, accumulation = (
        batch.global_batch_size,
        batch.per_device_train_batch_size,
        batch.gradient_accumulation_steps,
    )
    if (default := default_batch(config)) is not None:
        passes = accumulation or 1
        micro = _share_of_default(default, passes, world)
        reason = f"{default} by default" if micro < default else "by default"
        return BatchShape(default, micro, passes, reason)
    if size is None:
        assert micro is not None, "a default would have been taken"
        accumulation = accumulation or 1
        return BatchShape(micro * accumulation * world, micro, accumulation, "as set")
    share = _divide(size, world, "the number of devices", size)
    if micro and accumulation:
        if micro * accumulation != share:
            parts = "per_device_train_batch_size x gradient_accumulation_steps x devices"
            product = f"{micro} x {accumulation} x {world} = {micro * accumulation * world}"
            raise _cannot_be_cut(f"must be {parts}, but {size} is not {product}.")
        return BatchShape(size, micro, accumulation, "as set")
    if micro:
        rounds = _divide(share, micro, "per_device_train_batch_size x devices", size, world)
        return BatchShape(size, micro, rounds, f"accumulation follows from {size} sequences, {micro} at a time")
    if accumulation:
        micro = _divide(share, accumulation, "gradient_accumulation_steps x devices", size, world)
        return BatchShape(
            size, micro, accumulation, f"micro-batch follows from {size} sequences in {accumulation} passes"
        )
    micro = _largest_micro_batch(share, config.data.max_seq_length)
    limit = f"{MICRO_BATCH_TOKENS:,} tokens"
    split = f"split into equal micro-batches of at most {limit}"
    reason = f"one micro-batch; larger batches are split at {limit}" if micro == share else split
    return BatchShape(size, micro, share // micro, reason)


def default_batch(config: Config) -> int | None:
    """The sequences in one update where no batch size is set, on any number of devices; None where one is."""
    batch = config.batch
    if batch.global_batch_size is not None or batch.per_device_train_batch_size is not None:
        return None
    return DEFAULT_BATCH * (batch.gradient_accumulation_steps or 1)


def _share_of_default(default: int, passes: int, world: int) -> int:
    """Of one device in one pass. Another number of devices must not train on other batches, so nothing is rounded."""
    if default % (passes * world):
        fitting = ceil(default / (passes * world)) * passes * world
        message = f"is not set, and the default, {default}, cannot be divided among {world} devices."
        hint = f"Set it to a multiple of {passes * world}, for example batch.global_batch_size={fitting}."
        raise ConfigError([Problem("configuration", "batch.global_batch_size", message, hint)])
    return default // (passes * world)


def rate_scale(config: Config, global_batch: int) -> float:
    """What the rate is multiplied by where it was found at another batch: linear for sgd, by the root for others."""
    tuned = config.optimizer.tuned_batch_size
    if tuned is None:
        return 1.0
    return global_batch / tuned if config.optimizer.type == "sgd" else (global_batch / tuned) ** 0.5


def _largest_micro_batch(share: int, length: int) -> int:
    most = max(1, min(share, MICRO_BATCH_TOKENS // length))
    return next(part for part in range(most, 0, -1) if share % part == 0)


def _divide(share: int, by: int, name: str, size: int, world: int = 1) -> int:
    if share % by:
        raise _cannot_be_cut(f"must be a multiple of {name}, but {size} is not a multiple of {by * world}.")
    return share // by


def _cannot_be_cut(message: str) -> ConfigError:
    return ConfigError([Problem("configuration", "batch.global_batch_size", message)])


def tokens_per_batch(config: Config, world: int = 1) -> int:
    return batch_shape(config, world).global_batch * config.data.max_seq_length


def warmup_steps(config: Config, total_steps: int) -> int:
    """The warm-up in updates; a ratio is rounded up, so that a small one is not lost.

    The updates of a run of epochs or tokens are known only with the data. If they are no more than the warm-up, the
    warm-up takes its usual share of them.
    """
    schedule = config.schedule
    if schedule.warmup_steps is not None and schedule.warmup_steps >= total_steps:
        return min(max(1, round(total_steps * USUAL_WARMUP)), total_steps - 1)
    if schedule.warmup_steps is not None:
        return schedule.warmup_steps
    if schedule.warmup_ratio is not None:
        return ceil(Fraction(repr(schedule.warmup_ratio)) * total_steps)
    return 0


def averaging_steps(beta: float) -> float:
    """Over how many steps an exponential average with this factor reaches back."""
    return 1 / (1 - beta)


def derived_facts(path: str, config: Config) -> str | None:
    """The number that helps to judge a knob's value, in words; None where there is none."""
    fact = _FACTS.get(path)
    try:
        return fact(config) if fact else None
    except ConfigError:
        return None  # a batch that cannot be cut for one device, and may be for several


def _averages(beta: float) -> str:
    steps = float(f"{averaging_steps(beta):.3g}")
    return f"averages about {steps:,g} {'step' if steps == 1 else 'steps'}"


def _on_one_device(config: Config) -> str:
    """A batch that is set for each device, and all that follows from it, grows with their number."""
    batch = config.batch
    return " on one device" if batch.per_device_train_batch_size and not batch.global_batch_size else ""


def _tokens_a_batch(config: Config) -> str:
    return f"{tokens_per_batch(config):,} tokens per batch{_on_one_device(config)}"


def _shape(config: Config) -> str:
    shape = batch_shape(config)
    product = f"micro-batches of {shape.micro_batch} x {shape.accumulation} accumulated"
    return f"{shape.global_batch} sequences = {product}, on one device"


def _inner_width(config: Config) -> str:
    size = intermediate_size(config)
    return f"{size:,} = {size / config.model.hidden_size:.3g} x the hidden size"


def _shared_heads(config: Config) -> str:
    shared, heads = key_value_heads(config), config.model.num_attention_heads
    return f"{shared} for {heads} heads" + (f": {heads // shared} share each" if heads > shared else ": one each")


def _head_width(config: Config) -> str:
    return f"{head_width(config)} dimensions per head"


def _width_ratio(config: Config) -> str | None:
    model = config.model
    if model.parametrization == "standard" or model.base_hidden_size is None:
        return None
    ratio = model.hidden_size / model.base_hidden_size
    if ratio == 1:
        return "the width is the base's"
    return f"the width is {ratio:.3g} x the base, {model.hidden_size} / {model.base_hidden_size}"


def _head_ratio(config: Config) -> str | None:
    base, width = config.model.base_head_width, head_width(config)
    if config.model.parametrization == "standard" or base is None:
        return None
    return (
        "heads are as wide as the base's" if width == base else f"heads are {width / base:.3g} x as wide as the base's"
    )


def _ratios(config: Config) -> str | None:
    """Of all that grows: mup is the standard rule only where nothing did."""
    if config.model.parametrization == "standard" or config.model.base_hidden_size is None:
        return None
    if Scaling.of(config).is_base:
        return "at the base width, where mup equals the standard parametrization"
    return "; ".join(fact for of in (_width_ratio, _head_ratio, _depth_ratio) if (fact := of(config)) is not None)


def _depth_ratio(config: Config) -> str | None:
    model = config.model
    if model.parametrization == "standard" or model.base_num_hidden_layers is None:
        return None
    ratio = model.num_hidden_layers / model.base_num_hidden_layers
    return f"{ratio:.3g} x the base depth: the output of each block is multiplied by {ratio**-model.depth_exponent:.3g}"


def _warmup_share(config: Config) -> str | None:
    steps = config.training.max_steps
    if steps is None or (config.schedule.warmup_steps is None and config.schedule.warmup_ratio is None):
        return None
    warmup = warmup_steps(config, steps)
    told = f"warm-up is {100 * warmup / steps:.3g} % of the run: {warmup:,} of {steps:,} steps"
    too_long = f"; that is too long: {100 * SHORT_WARMUP:.3g} % is typical"
    return told + too_long * (warmup > LONGEST_WARMUP * steps)


def _length_in_tokens(config: Config) -> str | None:
    steps = config.training.max_steps
    return f"{steps * tokens_per_batch(config):,} tokens{_on_one_device(config)}" if steps is not None else None


def _length_in_steps(config: Config) -> str | None:
    duration = Duration.of(config)
    if duration is None or duration.unit != "tokens":
        return None
    steps = duration.steps(0, batch_shape(config).global_batch, config.data.max_seq_length)
    return f"{steps:,} steps{_on_one_device(config)}"


def _lowest_rate(config: Config) -> str:
    return f"the lowest learning rate is {config.schedule.floor * config.optimizer.learning_rate:.3g}"


_FACTS: dict[str, Callable[[Config], str | None]] = {
    "model.hidden_size": _head_width,
    "model.num_attention_heads": _head_width,
    "model.intermediate_size": _inner_width,
    "model.num_key_value_heads": _shared_heads,
    "model.parametrization": _ratios,
    "model.base_hidden_size": _width_ratio,
    "model.base_head_width": _head_ratio,
    "model.base_num_hidden_layers": _depth_ratio,
    "model.depth_exponent": _depth_ratio,
    "optimizer.beta1": lambda config: _averages(config.optimizer.beta1),
    "optimizer.beta2": lambda config: _averages(config.optimizer.beta2),
    "optimizer.momentum": lambda config: _averages(config.optimizer.momentum),
    "schedule.warmup_steps": _warmup_share,
    "schedule.warmup_ratio": _warmup_share,
    "schedule.floor": _lowest_rate,
    "batch.global_batch_size": _tokens_a_batch,
    "batch.per_device_train_batch_size": _shape,
    "batch.gradient_accumulation_steps": _shape,
    "data.max_seq_length": _tokens_a_batch,
    "training.max_steps": _length_in_tokens,
    "training.max_tokens": _length_in_steps,
    "precision.initial_scale_power": lambda config: (
        f"the initial loss scale is {2**config.precision.initial_scale_power:,}"
    ),
}
