"""The gradient noise scale: the batch beyond which more rows buy next to nothing (arXiv 1812.06162).

The gradient of a batch of b tokens is the true one, G, and noise of variance S / b. Of k parts of one batch, each of b
tokens, with gradients g_i and their mean m, both unbiased:

    |G|^2 = (k |m|^2 - mean |g_i|^2) / (k - 1)
    S     = b k (mean |g_i|^2 - |m|^2) / (k - 1)

Both are averaged over several batches, and only then divided: noise scale = S / |G|^2, in tokens. Trained with batches
of B tokens, a loss takes (1 + noise / B) times the fewest steps and (1 + B / noise) times the fewest tokens: at B =
noise twice of each. Beyond it, more tokens at a time save few steps and cost in proportion: this is the critical batch.

It is small when training begins, and grows as the loss falls: measure it where the run will spend its time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from trainbook.errors import UserError
from trainbook.knobs.derive import batch_shape
from trainbook.loop.state import TrainState, seed_everything
from trainbook.study.rehearsal import Rehearsal
from trainbook.tasks import StepBatch, to_device

PARTS, BATCHES = 8, 10  # of a batch, whose gradients are compared; batches

# Student's t, two-sided 95 %, for 1, 2, 3 ... degrees of freedom; the normal's beyond them.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
STUDENT += (2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
NORMAL = 1.960


class NoiseSample(NamedTuple):
    """One batch's unbiased estimates."""

    signal: float  # |G|^2; may be below 0 by chance
    noise: float  # S, for one token


@dataclass(frozen=True)
class NoiseScale:
    """In tokens."""

    tokens: float  # infinite if the signal drowns in the noise
    low: float  # 95 % interval
    high: float
    samples: int
    tokens_per_row: float | None = None  # on average, counted as the noise is: without padding


def estimate(squares: Sequence[float], mean_square: float, tokens: float) -> NoiseSample:
    """From the squared norms of the parts' gradients, of `tokens` each, and that of their mean."""
    count = len(squares)
    if count < 2:
        raise UserError(f"the noise scale needs a batch of at least 2 parts, but got {count}.")
    of_parts = statistics.fmean(squares)
    signal = (count * mean_square - of_parts) / (count - 1)
    return NoiseSample(signal, tokens * count * (of_parts - mean_square) / (count - 1))


def noise_scale(samples: Sequence[NoiseSample]) -> NoiseScale:
    """The ratio of the means, and its interval by Fieller's theorem, which has no upper end where the mean signal
    cannot be told from 0."""
    if len(samples) < 2:
        raise UserError(f"the noise scale needs at least 2 measured batches, but got {len(samples)}.")
    signals, noises = [each.signal for each in samples], [each.noise for each in samples]
    signal, noise = statistics.fmean(signals), statistics.fmean(noises)
    count = len(samples)
    spread = STUDENT[count - 2] if count - 1 <= len(STUDENT) else NORMAL
    of_signal = spread**2 * statistics.variance(signals) / count
    of_noise = spread**2 * statistics.variance(noises) / count
    together = spread**2 * statistics.covariance(signals, noises) / count
    ratio = noise / signal if signal > 0 else math.inf
    # Ratios r for which the mean of (noise - r signal) is not told from 0: a quadratic in r.
    a, b, c = signal**2 - of_signal, signal * noise - together, noise**2 - of_noise
    root = math.sqrt(max(0.0, b * b - a * c))
    if a <= 0 or signal <= 0:
        low = c / (b + root) if b + root > 0 and c > 0 else 0.0
        return NoiseScale(ratio, max(0.0, low), math.inf, count)
    return NoiseScale(ratio, max(0.0, (b - root) / a), (b + root) / a, count)


# Of a training


def noise_of_training(training: Rehearsal, batches: int = BATCHES) -> NoiseScale:
    """Of the model as it is now, on the batches that would come next: nothing is updated."""
    job, state = training.job, training.state
    parts, step = state.micro_batch, state.step
    state.micro_batch = rows_of_parts(batch_shape(job.config).global_batch, parts)
    feed = job.feed(step, step + batches * PARTS)
    try:
        samples: list[NoiseSample] = []
        tokens = rows = 0
        with closing(feed):
            for batch in islice(joined(feed), batches):
                samples.append(sample_of(state, batch))
                tokens, rows = tokens + batch.num_tokens, rows + batch.num_rows
    finally:
        state.micro_batch = parts
    return replace(noise_scale(samples), tokens_per_row=tokens / rows if rows else None)


def rows_of_parts(global_batch: int, micro_batch: int) -> int:
    """As many rows as leave at least so many equal parts of a global batch, or else 1."""
    most = min(micro_batch, max(1, global_batch // PARTS))
    return next(rows for rows in range(most, 0, -1) if global_batch % rows == 0)


def joined(batches: Iterable[StepBatch]) -> Iterator[StepBatch]:
    """Small batches, several together, so that each has parts enough."""
    waiting: list[StepBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(each.micro_batches) for each in waiting) >= PARTS:
            yield replace(
                batch,
                micro_batches=[part for each in waiting for part in each.micro_batches],
                num_targets=sum(each.num_targets for each in waiting),
                num_tokens=sum(each.num_tokens for each in waiting),
                num_rows=sum(each.num_rows for each in waiting),
            )
            waiting = []


def sample_of(state: TrainState, batch: StepBatch) -> NoiseSample:
    """The gradient of each micro-batch apart, and their mean: as much memory as one more gradient."""
    parts = batch.micro_batches
    if len(parts) < 2:
        raise UserError(f"the noise scale needs a batch of at least 2 parts, but got {len(parts)}.")
    seed_everything(state.seed, state.step)
    kept = [buffer.clone() for buffer in state.buffers]
    mean: list[Tensor] | None = None
    squares: list[float] = []
    try:
        for micro_batch in parts:
            gradients = _gradients(state, micro_batch, batch.num_targets / len(parts))
            squares.append(_square(gradients))
            if mean is None:
                mean = [gradient / len(parts) for gradient in gradients]
            else:
                torch._foreach_add_(mean, gradients, alpha=1 / len(parts))
    finally:
        state.strategy.drop_gradients(state.optimizer)
        for buffer, before in zip(state.buffers, kept, strict=True):
            buffer.copy_(before)
    assert mean is not None
    return estimate(squares, _square(mean), batch.num_tokens / len(parts))


def _gradients(state: TrainState, micro_batch: object, num_targets: float) -> list[Tensor]:
    """Of the mean loss over the part's share of the targets, so that the mean over parts is the batch's gradient.

    fp16 needs its loss scale; where that is still too high, a lower one here tells the same.
    """
    kept = state.precision.loss_scale
    scale = 1.0 if kept is None else float(kept)
    while True:
        state.strategy.drop_gradients(state.optimizer)
        with state.precision.autocast():
            sums = state.losses(to_device(micro_batch, state.device))
        (torch.stack(list(sums.values())).sum() * (scale / num_targets)).backward()
        gradients = [
            torch.zeros_like(each, dtype=torch.float32) if each.grad is None else each.grad.float() / scale
            for each in state.parameters
        ]
        if math.isfinite(_square(gradients)):
            return gradients
        if scale <= 1.0:
            raise UserError("the gradient is not finite, so there is no noise scale to measure.")
        scale /= 2


def _square(tensors: list[Tensor]) -> float:
    norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32)).double()
    return float((norms * norms).sum())
