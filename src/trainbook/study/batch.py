"""The largest micro-batch that fits, and the one from which on more rows at a time no longer make training faster.

Rows are doubled until memory is out. Memory grows along a straight line in rows, so the last two peaks say where the
limit lies; what they say is tried, and the bracket between what fits and what does not closes around it.

Doubling the rows doubles the throughput as long as the device is not busy, and adds nothing once it is. Throughput is
called flat from the smallest number of rows that reaches 90 % of the highest throughput measured. If the last doubling
still gained more than 10 %, it is not flat yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import batch_shape, has_windows, rate_scale
from trainbook.knobs.dumping import yaml_value

FLAT = 0.9  # of the highest throughput
PRECISION = 16  # the answer may be short of the largest by one row in so many
MOST_ROWS = 4096


@dataclass(frozen=True)
class BatchTrial:
    """What a few steps with so many rows at a time came to."""

    peak_bytes: int
    tokens_per_second: float


@dataclass
class BatchSearch:
    """What is known so far: a search that is cut short keeps it."""

    limit: int | None = None  # bytes; None: the device itself says when memory is out
    most: int = MOST_ROWS  # rows that are worth trying
    trials: dict[int, BatchTrial] = field(default_factory=dict)
    too_many: int | None = None  # the smallest number of rows that did not fit
    is_done: bool = False

    @property
    def largest(self) -> int | None:
        """Rows that fit; None while none was seen to."""
        return max(self.trials, default=None)

    @property
    def is_cap(self) -> bool:
        """More rows may fit than were tried."""
        return self.is_done and self.too_many is None

    @property
    def peaks(self) -> dict[int, int]:
        return {rows: trial.peak_bytes for rows, trial in sorted(self.trials.items())}

    @property
    def throughput(self) -> dict[int, float]:
        return {rows: trial.tokens_per_second for rows, trial in sorted(self.trials.items())}

    def run(self, attempt: Callable[[int], BatchTrial | None], start: int = 1) -> BatchSearch:
        """`attempt` gives None where memory was not enough."""
        rows: int | None = min(start, self.most)
        while rows is not None:
            self._try(rows, attempt)
            rows = self._next()
        self.is_done = True
        return self

    def _try(self, rows: int, attempt: Callable[[int], BatchTrial | None]) -> None:
        trial = None if self._would_not_fit(rows) else attempt(rows)
        if trial is None or (self.limit is not None and trial.peak_bytes > self.limit):
            self.too_many = rows if self.too_many is None else min(rows, self.too_many)
        else:
            self.trials[rows] = trial

    def _would_not_fit(self, rows: int) -> bool:
        """Where nothing but a stated limit says that memory is out, a step that goes beyond it must not be begun."""
        fitting = self._room_for()
        return fitting is not None and rows > fitting + 1

    def _next(self) -> int | None:
        largest = self.largest
        if largest is None:  # not even these: fewer, down to one
            assert self.too_many is not None
            return self.too_many // 2 or None
        if self.too_many is None:
            return None if largest >= self.most else min(2 * largest, self.most)
        if self.too_many - largest <= max(1, largest // PRECISION):
            return None
        return _between(largest, self.too_many, self._room_for())

    def _room_for(self) -> float | None:
        """Rows at which the line through the last two peaks meets the limit."""
        if self.limit is None or len(self.trials) < 2:
            return None
        (rows, peak), (more_rows, more) = sorted(self.peaks.items())[-2:]
        slope = (more - peak) / (more_rows - rows)
        return more_rows + (self.limit - more) / slope if slope > 0 else None


def _between(fits: int, does_not: int, guess: float | None) -> int:
    """The guess where it lies inside, or as little more as matters where it says that no more fit; else the middle."""
    if guess is None or guess >= does_not:
        return (fits + does_not) // 2
    return min(max(int(guess), fits + max(1, fits // PRECISION)), does_not - 1)


def flattens_at(throughput: Mapping[int, float]) -> int | None:
    """Rows from which on more of them gain next to nothing; None if it still grew when memory or patience ended."""
    if len(throughput) < 2:
        return None
    enough = FLAT * max(throughput.values())
    flat = min(rows for rows, speed in throughput.items() if speed >= enough)
    return None if flat == max(throughput) else flat


# What else changes with the batch size: rules to start from, for the same number of tokens. A search is still better.
#
#     learning rate  scales with the square root of the batch for Adam and its relatives, in proportion for SGD (Malladi
#                    et al. 2022, arXiv 2205.10287; Goyal et al. 2017, arXiv 1706.02677), up to the critical batch.
#                    Beyond it more rows add little to the gradient, and no rule holds.
#     beta2          keeps its averaging length in tokens (Marek et al. 2025, arXiv 2507.07101): beta2 ** ratio. For a
#                    small change that is the square-root rule's 1 - ratio x (1 - beta2).
#     beta1, epsilon change too under the square-root rule: 1 - ratio x (1 - beta1), and epsilon / sqrt(ratio). They
#                    are told, not changed: beta1 is left at its usual value by nearly everybody, and epsilon rarely
#                    matters.
#     lengths        steps, warm-up and intervals cover as many tokens as before
#
# The learning rate itself stays as written: `optimizer.tuned_batch_size` says at which batch it was tuned, and every
# run scales it.


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
