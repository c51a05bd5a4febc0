from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainbook.tasks import IGNORED, cross_entropy_parts
from trainbook.tasks.losses import soft_cap


def example(count: int = 20, vocab: int = 11, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(count, vocab, generator=generator)
    targets = torch.randint(0, vocab, (count,), generator=generator)
    targets[::4] = IGNORED
    return logits.requires_grad_(), targets


def gradient(value: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(value, of, retain_graph=True)[0]


def test_cross_entropy_is_a_sum_over_targets():
    logits, targets = example()
    parts = cross_entropy_parts(logits, targets)
    assert list(parts) == ["cross_entropy"]
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    assert torch.equal(parts["cross_entropy"], expected)
    by_hand = sum(-logits[i].log_softmax(-1)[t] for i, t in enumerate(targets.tolist()) if t != IGNORED)
    torch.testing.assert_close(parts["cross_entropy"], by_hand)


@pytest.mark.parametrize("smoothing", [0.1, 0.5, 1.0])
def test_parts_with_label_smoothing_sum_up_to_torchs_value_and_gradient(smoothing: float):
    logits, targets = example()
    parts = cross_entropy_parts(logits, targets, label_smoothing=smoothing)
    assert list(parts) == ["cross_entropy", "label_smoothing"]
    total = parts["cross_entropy"] + parts["label_smoothing"]
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(gradient(total, logits), gradient(expected, logits))


def test_masked_columns_count_neither_in_smoothing_nor_in_z_loss_nor_in_the_gradient():
    logits, targets = example()
    wide = F.pad(logits.detach(), (0, 5), value=float("-inf")).requires_grad_()
    plain = cross_entropy_parts(logits, targets, label_smoothing=0.1, z_loss=1e-2)
    masked = cross_entropy_parts(wide, targets, num_classes=11, label_smoothing=0.1, z_loss=1e-2)
    for name, value in plain.items():
        torch.testing.assert_close(masked[name], value)
        found = gradient(masked[name], wide)
        torch.testing.assert_close(found[:, :11], gradient(value, logits))
        assert (found[:, 11:] == 0).all()


def test_the_reported_cross_entropy_is_the_plain_one_with_every_setting():
    logits, targets = example()
    plain = cross_entropy_parts(logits, targets)["cross_entropy"]
    assert torch.equal(cross_entropy_parts(logits, targets, label_smoothing=0.3, z_loss=0.1)["cross_entropy"], plain)


def test_the_gradient_of_z_loss_is_2c_log_z_softmax_and_zero_where_there_is_no_target():
    logits, targets = example()
    parts = cross_entropy_parts(logits, targets, z_loss=1e-2)
    log_z = logits.logsumexp(-1, keepdim=True)
    is_target = (targets != IGNORED)[:, None]
    torch.testing.assert_close(parts["z_loss"], 1e-2 * (log_z.square() * is_target).sum())
    expected = 2 * 1e-2 * log_z * logits.softmax(-1) * is_target
    torch.testing.assert_close(gradient(parts["z_loss"], logits), expected)
    assert (gradient(parts["z_loss"], logits)[0] == 0).all()


def test_z_loss_pulls_a_common_shift_of_the_logits_by_exactly_1_minus_2_rate_c():
    """Cross entropy does not see a shift; under SGD z-loss multiplies log Z by 1 - 2 x 1000 x 1e-4 = 0.8 a step."""
    found = {}
    for coefficient in (0.0, 1e-4):
        logits, _ = example()
        logits = (logits - logits.logsumexp(-1, keepdim=True) + 23.319).detach()
        targets = torch.arange(20) % 11
        shift = torch.zeros((), requires_grad=True)
        found[coefficient] = []
        for _ in range(5):
            parts = cross_entropy_parts(logits + shift, targets, z_loss=coefficient)
            (slope,) = torch.autograd.grad(torch.stack(list(parts.values())).sum() / 20, shift)
            shift = (shift - 1000 * slope).detach().requires_grad_()
            found[coefficient].append((logits + shift).logsumexp(-1).mean().item())
    assert found[0.0] == pytest.approx([23.319] * 5, abs=1e-3)
    assert found[1e-4] == pytest.approx([18.655, 14.924, 11.939, 9.552, 7.641], abs=1e-3)


def test_a_batch_without_targets_costs_nothing():
    logits, targets = example()
    parts = cross_entropy_parts(logits, torch.full_like(targets, IGNORED), label_smoothing=0.1, z_loss=0.1)
    assert {name: value.item() for name, value in parts.items()} == dict.fromkeys(parts, 0.0)
    assert (gradient(torch.stack(list(parts.values())).sum(), logits) == 0).all()


def test_parts_of_micro_batches_add_up_to_those_of_the_whole():
    logits, targets = example()
    options: dict[str, Any] = {"label_smoothing": 0.1, "z_loss": 1e-2}
    whole = cross_entropy_parts(logits, targets, **options)
    pieces = [cross_entropy_parts(logits[part], targets[part], **options) for part in (slice(0, 3), slice(3, 20))]
    for name, total in whole.items():
        torch.testing.assert_close(sum(piece[name] for piece in pieces), total)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_logits_are_summed_in_fp32(dtype: torch.dtype):
    logits = torch.zeros(5000, 4, dtype=dtype)
    parts = cross_entropy_parts(logits, torch.zeros(5000, dtype=torch.long), label_smoothing=0.1, z_loss=1.0)
    assert {value.dtype for value in parts.values()} == {torch.float32}
    assert parts["cross_entropy"].item() == pytest.approx(5000 * math.log(4), rel=1e-5)
    assert parts["z_loss"].item() == pytest.approx(5000 * math.log(4) ** 2, rel=1e-5)


def test_a_soft_cap_bounds_large_logits_and_leaves_small_ones():
    logits = torch.tensor([-1000.0, -0.01, 0.0, 0.01, 30.0, 1000.0])
    capped = soft_cap(logits, 30.0)
    torch.testing.assert_close(capped, torch.tensor([-30.0, -0.01, 0.0, 0.01, 30 * math.tanh(1), 30.0]))
    assert soft_cap(logits, None) is logits
