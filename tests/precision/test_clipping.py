from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trainbook.precision import clip_gradients


def random_gradients(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(40, 30), (30,), (), (7, 3, 2)]
    return [scale * torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def test_one_norm_over_all_gradients():
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[0.0], [4.0]])]
    clipped = clip_gradients(gradients, 1.0)
    assert clipped.norm == 5.0, "as it was before clipping"
    assert clipped.per_tensor == [3.0, 4.0]
    assert [gradient.norm().item() for gradient in gradients] == pytest.approx([0.6, 0.8], abs=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1e-2, 1.0, 1e6])
@pytest.mark.parametrize("max_norm", [1.0, 0.1])
def test_clipping_is_that_of_torch(scale: float, max_norm: float):
    ours, theirs = random_gradients(scale), [nn.Parameter(torch.zeros_like(g)) for g in random_gradients()]
    for parameter, gradient in zip(theirs, random_gradients(scale), strict=True):
        parameter.grad = gradient
    clipped = clip_gradients(ours, max_norm)
    assert torch.equal(clipped.norm, nn.utils.clip_grad_norm_(theirs, max_norm))
    for gradient, parameter in zip(ours, theirs, strict=True):
        assert parameter.grad is not None and torch.equal(gradient, parameter.grad)


@pytest.mark.parametrize("max_norm", [1e6, None])
def test_below_the_bound_or_without_one_gradients_keep_their_bits(max_norm: float | None):
    gradients = random_gradients()
    clipped = clip_gradients(gradients, max_norm)
    assert all(torch.equal(one, other) for one, other in zip(gradients, random_gradients(), strict=True))
    assert not clipped.scaled and clipped.scaled.dtype is torch.bool
    torch.testing.assert_close(clipped.norm, torch.cat([gradient.flatten() for gradient in gradients]).norm())


def test_scaled_says_whether_gradients_were_changed():
    for max_norm in (0.1, 10.0, 30.0, 34.0, 36.0, 40.0, None):
        gradients = random_gradients()
        clipped = clip_gradients(gradients, max_norm)
        same = all(torch.equal(one, other) for one, other in zip(gradients, random_gradients(), strict=True))
        assert bool(clipped.scaled) is not same, max_norm
        assert bool(clipped.scaled) is (max_norm is not None and bool(clipped.norm > max_norm))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_gradient_makes_the_norm_non_finite_and_its_own_only(bad: float):
    gradients = random_gradients()
    gradients[1][3] = bad
    clipped = clip_gradients(gradients, 1.0)
    assert not clipped.norm.isfinite()
    assert [bool(norm.isfinite()) for norm in clipped.per_tensor] == [True, False, True, True]


def test_the_norm_of_narrow_gradients_is_computed_in_fp32():
    """In bf16 a sum of 4096 hundredths stops at 4."""
    gradients = [torch.full((4096,), 0.1, dtype=torch.bfloat16)]
    clipped = clip_gradients(gradients, 1.0)
    assert clipped.norm.dtype is clipped.per_tensor[0].dtype is torch.float32
    assert clipped.norm.item() == pytest.approx(6.4, rel=1e-2)
    assert gradients[0].dtype is torch.bfloat16
    assert gradients[0].float().norm().item() == pytest.approx(1.0, rel=1e-2)
