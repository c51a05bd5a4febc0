"""What else changes with the batch size: rules to start from, for the same number of tokens. A search is still better.

    learning rate  scales with the square root of the batch for Adam and its relatives, in proportion for SGD (Malladi
                   et al. 2022, arXiv 2205.10287; Goyal et al. 2017, arXiv 1706.02677), up to the critical batch.
                   Beyond it more rows add little to the gradient, and no rule holds.
    beta2          keeps its averaging length in tokens (Marek et al. 2025, arXiv 2507.07101): beta2 ** ratio. For a
                   small change that is the square-root rule's 1 - ratio x (1 - beta2).
    beta1, epsilon change too under the square-root rule: 1 - ratio x (1 - beta1), and epsilon / sqrt(ratio). They are
                   told, not changed: beta1 is left at its usual value by nearly everybody, and epsilon rarely matters.
    lengths        steps, warm-up and intervals cover as many tokens as before

The learning rate itself stays as written: `optimizer.tuned_batch_size` says at which batch it was tuned, and every run
scales it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, has_windows, rate_scale
from trainbook.knobs.dumping import yaml_value

ADAMS = ("adamw", "stable_adamw", "adamw_8bit", "paged_adamw_8bit", "muon")  # Muon leaves a part to Adam
TOTAL, WARMUP = "training.max_steps", "schedule.warmup_steps"
LENGTHS = (TOTAL, WARMUP, "evaluation.eval_steps", "checkpoint.save_steps")


@dataclass(frozen=True)
class Changed:
    knob: str
    old: Any
    new: Any
    why: str


def for_batch(
    config: Config, batch: int, critical_tokens: float | None = None, tokens_per_row: float | None = None
) -> dict[str, Any]:
    """The knobs to change for a global batch of so many sequences; and what the critical batch says of it.

    `tokens_per_row`: as the critical batch was counted. Windows are all full, and so are rows where it is not known.
    """
    if batch < 1:
        raise UserError(f"--for-batch: must be >= 1, but got {batch}.")
    old = batch_shape(config).global_batch
    ratio = batch / old
    found = [Changed("batch.global_batch_size", config.batch.global_batch_size, batch, "as requested")]
    found += [
        Changed(f"batch.{name}", getattr(config.batch, name), None, "follows from the global batch")
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
        if getattr(config.batch, name) is not None
    ]
    if batch != old:
        found += _rate(config, old, batch)
        if config.optimizer.type in ADAMS:
            left = float(f"{1 - config.optimizer.beta2**ratio:.6g}")  # of 1: it is what counts, and never none
            beta2 = float(f"{1 - left:.15g}")
            found.append(
                Changed(
                    "optimizer.beta2",
                    config.optimizer.beta2,
                    beta2,
                    "averages over the same number of tokens as before",
                )
            )
        lengths = {path: max(1, round(steps / ratio)) for path in LENGTHS if (steps := config.get(path))}
        if TOTAL in lengths and WARMUP in lengths:  # as short as it may become, a run is longer than its warm-up
            lengths[WARMUP] = min(lengths[WARMUP], lengths[TOTAL] - 1)
        found += [
            Changed(path, config.get(path), steps, "covers the same number of tokens as before")
            for path, steps in lengths.items()
        ]
    changed = [each for each in found if each.old != each.new]
    return {
        "from": old,
        "to": batch,
        "changes": [asdict(each) for each in changed],
        "overrides": [f"{each.knob}={yaml_value(each.new)}" for each in changed],
        "remarks": [
            *_critical_batch(config, old, batch, critical_tokens, tokens_per_row),
            *_rest_of_the_rule(config, ratio),
        ],
    }


def _rate(config: Config, old: int, batch: int) -> list[Changed]:
    tuned = config.optimizer.tuned_batch_size
    at = config.optimizer.model_copy(update={"tuned_batch_size": tuned or old})
    rate = config.optimizer.learning_rate * rate_scale(config.model_copy(update={"optimizer": at}), batch)
    rule = "in proportion to the batch" if config.optimizer.type == "sgd" else "with the square root of the batch"
    why = f"the learning rate scales {rule}: {config.optimizer.learning_rate:g} becomes {rate:.3g}"
    return [Changed("optimizer.tuned_batch_size", tuned, tuned or old, why)]


def _critical_batch(
    config: Config, old: int, batch: int, critical_tokens: float | None, tokens_per_row: float | None
) -> list[str]:
    if critical_tokens is None:
        measure = "trainbook plan RECIPE --measure --noise-after N"
        return [f"the scaling rules hold up to the critical batch size; measure it with {measure}"]
    if math.isinf(critical_tokens):
        return ["the gradient is smaller than its noise: a larger batch still helps, so the scaling rules should hold"]
    if tokens_per_row is None or has_windows(config):
        tokens_per_row = config.data.max_seq_length
    rows = critical_tokens / tokens_per_row
    told = f"the critical batch size is about {rows:,.0f} sequences ({critical_tokens:,.0f} tokens)"
    if batch <= rows:
        return [f"{told}: {batch:,} is within it, so the scaling rules should hold"]
    steps = (1 + rows / batch) / (1 + rows / old)
    return [
        f"{told}: {batch:,} is beyond it. Compared with a batch of {old:,}, the same loss takes {steps:.0%} of the "
        f"steps and {steps * batch / old:.2g} times the tokens: search the learning rate again"
    ]


def _rest_of_the_rule(config: Config, ratio: float) -> list[str]:
    """What the square-root rule says of beta1 and epsilon, where it says anything."""
    optimizer = config.optimizer
    if optimizer.type not in ADAMS or ratio == 1:
        return []
    beta1, epsilon = 1 - ratio * (1 - optimizer.beta1), optimizer.epsilon / math.sqrt(ratio)
    asked = f"optimizer.epsilon={yaml_value(float(f'{epsilon:.3g}'))}"
    if beta1 >= 0:
        asked = f"optimizer.beta1={yaml_value(float(f'{beta1:.6g}'))} {asked}"
    ends = "" if beta1 >= 0 else f" (for beta1 it ends at {1 / (1 - optimizer.beta1):.3g} times the batch)"
    kept = f"beta1 {optimizer.beta1:g} and epsilon {optimizer.epsilon:g} are kept"
    return [f"{kept}; to follow the square-root rule in full{ends}, add {asked}"]
