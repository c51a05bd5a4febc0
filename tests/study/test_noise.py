"""The gradient noise scale, against models whose true one is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.loop.job import build_state
from trainbook.precision import Precision
from trainbook.study.noise import NoiseSample, estimate, joined, noise_scale, rows_of_parts, sample_of
from trainbook.tasks import StepBatch

MEAN = np.array([0.3, -0.2, 0.1, 0.0])
DEVIATION = np.array([1.0, 0.5, 0.25, 2.0])
SIGNAL, NOISE = float((MEAN**2).sum()), float((DEVIATION**2).sum())  # |G|^2, and S for one token


def drawn(chance: np.random.Generator, parts: int, tokens: int) -> NoiseSample:
    """Gradients of parts of so many tokens, where each token's is drawn from a normal distribution."""
    gradients = chance.normal(MEAN, DEVIATION / math.sqrt(tokens), size=(parts, len(MEAN)))
    return estimate((gradients**2).sum(1).tolist(), float((gradients.mean(0) ** 2).sum()), tokens)


@pytest.mark.parametrize(("parts", "tokens"), [(2, 16), (8, 4), (8, 64)])
def test_both_estimates_are_right_on_average_whatever_the_batch_is_cut_into(parts: int, tokens: int):
    chance = np.random.default_rng(0)
    samples = [drawn(chance, parts, tokens) for _ in range(20_000)]
    for found, exact in zip(zip(*samples, strict=True), (SIGNAL, NOISE), strict=True):
        standard_error = np.std(found) / math.sqrt(len(found))
        assert abs(np.mean(found) - exact) < 4 * standard_error
        assert standard_error < 0.1 * exact, "or the line above says little"


def test_the_interval_covers_the_true_noise_scale_as_often_as_it_says():
    chance = np.random.default_rng(1)
    found = [noise_scale([drawn(chance, 8, 64) for _ in range(10)]) for _ in range(1000)]
    covered = sum(each.low <= NOISE / SIGNAL <= each.high for each in found)
    assert 925 <= covered <= 975  # 95 %, give or take 3.6 standard deviations of a count
    assert all(each.low <= each.tokens <= each.high for each in found)


def test_a_signal_that_drowns_has_no_upper_end():
    found = noise_scale([NoiseSample(1.0, 10.0), NoiseSample(-1.2, 12.0), NoiseSample(0.1, 11.0)])
    assert found.tokens == math.inf
    assert found.high == math.inf
    assert 0 < found.low < math.inf
    unclear = noise_scale([NoiseSample(1.0, 10.0), NoiseSample(-0.8, 12.0), NoiseSample(0.1, 11.0)])
    assert unclear.tokens == pytest.approx(110.0), "a mean signal of 0.1, which three such numbers cannot tell from 0"
    assert unclear.high == math.inf and 0 < unclear.low < 110.0
    clear = noise_scale([NoiseSample(1.0, 10.0), NoiseSample(1.1, 12.0), NoiseSample(0.9, 11.0)])
    assert clear.tokens == pytest.approx(11.0)
    assert clear.low < 11.0 < clear.high < math.inf


class Linear(nn.Module):
    """Its loss for a token is its weights times the token: the gradient of a batch is the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(len(MEAN)))


def linear_state(**precision: str):
    knobs = {"training": {"max_steps": 10, "device": "cpu"}, "precision": {"compute": "fp32"} | precision}
    config = load(knobs).config
    model = Linear()

    def losses(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (tokens @ model.weight).sum()}

    device = torch.device("cpu")
    return build_state(config, model, losses, 10, Precision(config.precision, device, batch=config.batch), device)


def test_a_training_step_is_taken_apart_without_changing_anything():
    state = linear_state()
    tokens = np.random.default_rng(2).normal(MEAN, DEVIATION, size=(4, 6, len(MEAN))).astype(np.float32)
    batch = StepBatch([torch.from_numpy(part) for part in tokens], num_targets=24, num_tokens=24)
    before = torch.get_rng_state(), state.parameters[0].detach().clone()
    found = sample_of(state, batch)
    of_parts = tokens.astype(np.float64).mean(1)
    expected = estimate((of_parts**2).sum(1).tolist(), float((of_parts.mean(0) ** 2).sum()), tokens=6)
    assert tuple(found) == pytest.approx(tuple(expected), rel=1e-5)
    assert state.parameters[0].grad is None
    assert torch.equal(state.parameters[0], before[1])
    assert int(state.applied) == 0 and state.step == 0


def test_the_loss_scale_of_fp16_does_not_change_the_noise_scale():
    tokens = [torch.full((2, len(MEAN)), value) for value in (0.5, 1.5)]
    batch = StepBatch(tokens, num_targets=4, num_tokens=4)
    state = linear_state(compute="fp16")
    assert state.precision.loss_scale is not None
    found, expected = sample_of(state, batch), sample_of(linear_state(), batch)
    assert tuple(found) == pytest.approx(tuple(expected))


def test_a_gradient_that_is_not_finite_has_no_noise_scale():
    batch = StepBatch([torch.full((2, len(MEAN)), math.inf)] * 2, num_targets=4, num_tokens=4)
    with pytest.raises(UserError, match="not finite"):
        sample_of(linear_state(), batch)


def test_too_few_parts_or_batches_are_refused():
    with pytest.raises(UserError, match="at least 2 parts"):
        estimate([1.0], 1.0, 4)
    with pytest.raises(UserError, match="at least 2 measured batches"):
        noise_scale([NoiseSample(1.0, 1.0)])


def test_a_batch_is_cut_into_at_least_eight_equal_parts_where_it_has_them():
    assert rows_of_parts(global_batch=64, micro_batch=32) == 8
    assert rows_of_parts(global_batch=480, micro_batch=32) == 32
    assert rows_of_parts(global_batch=12, micro_batch=12) == 1
    assert rows_of_parts(global_batch=1, micro_batch=1) == 1


def test_small_batches_are_put_together():
    small = [StepBatch([torch.zeros(1)] * 3, num_targets=30, num_tokens=60, num_rows=3) for _ in range(7)]
    found = list(joined(small))
    assert [len(each.micro_batches) for each in found] == [9, 9]
    assert (found[0].num_targets, found[0].num_tokens, found[0].num_rows) == (90, 180, 9)
