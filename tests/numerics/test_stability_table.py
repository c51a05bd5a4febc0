"""The known numbers of stability techniques: what theory says exactly, each technique here must give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trainbook.knobs.sections.optimizer import OptimizerKnobs as OptimizerKnobs
from trainbook.loop import step as step_module
from trainbook.loop.step import train_step
from trainbook.models import named_roles
from trainbook.models.attention import Attention
from trainbook.models.shape import Shape
from trainbook.optim import apply_update, build_optimizer, parameter_groups
from trainbook.tasks.losses import soft_cap

YES = torch.tensor(True)


# Clipping


@pytest.fixture
def clipped_gradient(monkeypatch: pytest.MonkeyPatch):
    """The gradient as the optimizer gets it."""

    def run(state: Any, batch: Any) -> np.ndarray:
        seen: list[np.ndarray] = []

        def note(optimizer: Any, apply: torch.Tensor) -> None:
            seen.append(torch.cat([each.grad.flatten().double() for each in state.parameters]).numpy())

        with monkeypatch.context() as patch:
            patch.setattr(step_module, "apply_update", note)
            train_step(state, batch)
        return seen[0]

    return run


def test_clipping_once_after_accumulation_is_clipping_the_full_batch(lab, clipped_gradient):
    bounded = ("batch.global_batch_size=8", "batch.max_grad_norm=0.25", "precision.compute=fp32")
    whole = lab.build(*bounded, "batch.per_device_train_batch_size=8", samples="documents")
    parts = lab.build(*bounded, "batch.per_device_train_batch_size=2", samples="documents")
    batch = next(parts.feed(0, 1))
    assert len(batch.micro_batches) == 4
    expected = clipped_gradient(whole.state, next(whole.feed(0, 1)))
    found = clipped_gradient(parts.state, batch)
    assert np.linalg.norm(expected) == pytest.approx(0.25, rel=1e-5)
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < 1e-6
    assert int(whole.state.clipped) == int(parts.state.clipped) == 1, "one step, clipped once"

    each = []
    for micro in batch.micro_batches:
        count = int((micro["targets"] != -100).sum())
        each.append(clipped_gradient(parts.state, type(batch)([micro], count, count)))
    mean = np.mean(each, axis=0)
    assert np.linalg.norm(mean - expected) / np.linalg.norm(expected) > 1e-2, "clipping each part is another gradient"


# Adam after a long quiet phase: how far a sudden, lasting gradient of one size moves the weights, in rates


def moves(beta2: float, steps: int = 300) -> list[float]:
    module: Any = nn.Linear(4, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(module.weight)
    knobs = OptimizerKnobs(type="adamw", beta1=0.9, beta2=beta2, epsilon=1e-12, weight_decay=0.0)
    optimizer = build_optimizer(parameter_groups(module, named_roles(module), knobs), knobs, torch.tensor(1.0))
    optimizer.state[module.weight]["step"].fill_(1e6)  # averages are zero: the quiet phase had no gradients at all
    found = []
    for _ in range(steps):
        before = module.weight.detach().clone()
        module.weight.grad = torch.full_like(module.weight, 5.0)
        apply_update(optimizer, YES)
        found.append(float((before - module.weight.detach()).max()))
    return found


# beta2, first move, largest move, and at which step: (1 - 0.9^k) / sqrt(1 - beta2^k)
JUMPS = [
    (0.999, 3.16, 6.57, 12),
    (0.99, 1.00, 2.13, 13),
    (0.98, 0.71, 1.55, 14),
    (0.95, 0.45, 1.10, 20),
    (0.9, 0.32, 1.00, None),
]


@pytest.mark.parametrize(("beta2", "first", "largest", "at"), JUMPS)
def test_adamw_overshoots_by_the_closed_form(beta2: float, first: float, largest: float, at: int | None):
    found = moves(beta2)
    expected = [(1 - 0.9**k) / math.sqrt(1 - beta2**k) for k in range(1, 301)]
    assert found == pytest.approx(expected, rel=1e-9)
    assert found[0] == pytest.approx((1 - 0.9) / math.sqrt(1 - beta2)) == pytest.approx(first, abs=0.005)
    assert max(found) == pytest.approx(largest, abs=0.006)
    assert at is None or found.index(max(found)) + 1 == at


# Logits


def attention(qk_norm: bool, position: str) -> Attention:
    shape = Shape(
        vocab_size=8,
        vocab_rows=8,
        max_seq_length=32,
        num_hidden_layers=1,
        hidden_size=64,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=4,
        qk_norm=qk_norm,
        position=position,
    )
    torch.manual_seed(0)
    return Attention(shape)


@torch.no_grad()
def largest_logit(layer: Attention, growth: float) -> float:
    """With the weights of queries and keys `growth` times as large."""
    x = torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(1))
    queries, keys, _ = (growth * layer.query_key_value(x)).split(layer.split_sizes, dim=-1)
    queries = layer.query_norm(layer.heads(queries, 4)).transpose(1, 2)
    keys = layer.key_norm(layer.heads(keys, 4)).transpose(1, 2)
    if layer.rotary is not None:
        queries, keys = layer.rotary(queries, 0), layer.rotary(keys, 0)
    return float((queries @ keys.transpose(-2, -1) * layer.scale).abs().max())


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_qk_norm_bounds_the_largest_attention_logit_by_the_root_of_the_head_width(position: str):
    """A normalized vector of 16 numbers is at most 4 long; 4 x 4 / sqrt(16) = 4, whatever the weights have grown to."""
    free, bounded = attention(False, position), attention(True, position)
    assert largest_logit(free, 1000.0) == pytest.approx(1e6 * largest_logit(free, 1.0), rel=1e-3)
    assert all(largest_logit(bounded, growth) <= 4.0 + 1e-5 for growth in (1.0, 100.0, 1e4))
    assert largest_logit(free, 1000.0) > 1e4


@pytest.mark.parametrize("cap", [5.0, 30.0])
def test_a_soft_cap_bounds_logits_and_its_slope_is_1_minus_the_square_of_the_share(cap: float):
    logits = torch.linspace(-8 * cap, 8 * cap, 801, dtype=torch.float32).requires_grad_()
    capped = soft_cap(logits, cap)
    assert capped.abs().max() <= cap
    assert (capped.diff() >= 0).all(), "the order stays"
    (slope,) = torch.autograd.grad(capped.sum(), logits)
    torch.testing.assert_close(slope, 1 - (capped.detach() / cap).square(), rtol=1e-5, atol=1e-6)
    assert slope[400] == 1.0 and slope.max() <= 1.0


def test_a_soft_cap_is_computed_in_fp32_where_logits_are_bf16():
    """Near the cap bf16 has steps of 1/8: five different logits would be one."""
    logits = torch.tensor([90.0, 93.0, 96.0, 99.0, 102.0], dtype=torch.bfloat16)
    capped = soft_cap(logits, 30.0)
    assert capped.dtype is torch.float32 and len(set(capped.tolist())) == 5
    torch.testing.assert_close(capped, 30 * torch.tanh(logits.double() / 30).float())
    assert len(set((30 * torch.tanh(logits / 30)).tolist())) < 5
