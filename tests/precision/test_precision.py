from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainbook.knobs.sections.precision import Precision as Knobs
from trainbook.precision import Precision, clip_gradients, resolve_compute

CPU = torch.device("cpu")


def precision_of(**knobs: Any) -> Precision:
    return Precision(Knobs(**knobs), CPU)


def random_gradients(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(40, 30), (30,), (), (7, 3, 2)]
    return [scale * torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


# Clipping


def test_one_norm_over_all_gradients():
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[0.0], [4.0]])]
    assert clip_gradients(gradients, 1.0) == 5.0, "as it was before clipping"
    assert [gradient.norm().item() for gradient in gradients] == pytest.approx([0.6, 0.8], abs=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1e-2, 1.0, 1e6])
@pytest.mark.parametrize("max_norm", [1.0, 0.1])
def test_clipping_is_that_of_torch(scale: float, max_norm: float):
    ours, theirs = random_gradients(scale), [nn.Parameter(torch.zeros_like(g)) for g in random_gradients()]
    for parameter, gradient in zip(theirs, random_gradients(scale), strict=True):
        parameter.grad = gradient
    norm = clip_gradients(ours, max_norm)
    assert torch.equal(norm, nn.utils.clip_grad_norm_(theirs, max_norm))
    for gradient, parameter in zip(ours, theirs, strict=True):
        assert parameter.grad is not None and torch.equal(gradient, parameter.grad)


@pytest.mark.parametrize("max_norm", [1e6, None])
def test_below_the_bound_or_without_one_gradients_keep_their_bits(max_norm: float | None):
    gradients = random_gradients()
    norm = clip_gradients(gradients, max_norm)
    assert all(torch.equal(one, other) for one, other in zip(gradients, random_gradients(), strict=True))
    expected = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    torch.testing.assert_close(norm, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_gradient_makes_the_norm_non_finite(bad: float):
    gradients = random_gradients()
    gradients[1][3] = bad
    assert not clip_gradients(gradients, 1.0).isfinite()


def test_the_norm_of_narrow_gradients_is_computed_in_fp32():
    """In bf16 a sum of 4096 hundredths stops at 4."""
    gradients = [torch.full((4096,), 0.1, dtype=torch.bfloat16)]
    norm = clip_gradients(gradients, 1.0)
    assert norm.dtype is torch.float32 and norm.item() == pytest.approx(6.4, rel=1e-2)
    assert gradients[0].dtype is torch.bfloat16
    assert gradients[0].float().norm().item() == pytest.approx(1.0, rel=1e-2)


# Types


def test_auto_computes_in_fp32_on_a_cpu():
    assert resolve_compute("auto", "fp32", CPU) == "fp32"
    assert resolve_compute("auto", "bf16", CPU) == "bf16"  # weights that are bf16 already cannot compute in more
    assert [resolve_compute(name, "fp32", CPU) for name in ("fp32", "bf16", "fp16")] == ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize(
    ("compute", "weights", "product", "scales"),
    [
        ("fp32", "fp32", torch.float32, False),
        ("bf16", "fp32", torch.bfloat16, False),
        ("fp16", "fp32", torch.float16, True),
        ("bf16", "bf16", torch.bfloat16, False),
        ("auto", "fp32", torch.float32, False),
    ],
)
def test_products_are_computed_in_the_type_asked_for(compute: str, weights: str, product: torch.dtype, scales: bool):
    precision = precision_of(compute=compute, weights=weights)
    layer = nn.Linear(4, 4).to(precision.weight_dtype)
    x = torch.ones(2, 4, dtype=precision.weight_dtype)
    with precision.autocast():
        out = layer(x)
    assert out.dtype is product
    assert (precision.scaler is not None) is (precision.loss_scale is not None) is scales
    precision.backward(out.float().sum())
    assert layer.weight.grad is not None and layer.weight.grad.dtype is precision.weight_dtype


def test_pure_bf16_needs_no_autocast():
    with precision_of(compute="bf16", weights="bf16").autocast():
        assert not torch.is_autocast_enabled("cpu")


# Loss scaling


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))

    def loss(self) -> Tensor:
        x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
        return self.layers(x).float().square().mean()


def clipped(precision: Precision, factor: float = 1.0, max_norm: float | None = None) -> tuple[float, list[Tensor]]:
    model = Tiny()
    with precision.autocast():
        loss = factor * model.loss()
    precision.backward(loss)
    norm = precision.clip_gradients(model.parameters(), max_norm)
    return norm.item(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("scale", [1.0, 1024.0, 65536.0])
@pytest.mark.parametrize("max_norm", [None, 0.01])
def test_gradients_are_unscaled_once_and_before_clipping(scale: float, max_norm: float | None):
    norm, gradients = clipped(precision_of(compute="fp16", loss_scale=scale), max_norm=max_norm)
    expected_norm, expected = clipped(precision_of(compute="fp32"), max_norm=max_norm)
    assert norm == pytest.approx(expected_norm, rel=5e-3)
    for found, exact in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, exact, rtol=0, atol=5e-3 * exact.abs().max().item())


def test_scaling_saves_gradients_that_fp16_cannot_hold():
    exact, _ = clipped(precision_of(compute="fp32"), factor=1e-7)
    unscaled, _ = clipped(precision_of(compute="fp16", loss_scale=1.0), factor=1e-7)
    scaled, _ = clipped(precision_of(compute="fp16"), factor=1e-7)
    assert scaled == pytest.approx(exact, rel=1e-2)
    assert unscaled < 0.9 * exact


def test_an_overflow_is_seen_in_the_norm_and_halves_the_scale():
    precision = precision_of(compute="fp16", initial_scale_power=20)
    assert precision.loss_scale == 2.0**20
    norm, _ = clipped(precision, factor=1e6, max_norm=1.0)
    precision.after_update(torch.tensor(norm))
    assert not torch.tensor(norm).isfinite() and precision.loss_scale == 2.0**19
    precision.after_update(torch.tensor(1.0))
    assert precision.loss_scale == 2.0**19


def test_settings_reach_the_scaler():
    scaler = precision_of(compute="fp16", initial_scale_power=5, growth_interval=7).scaler
    assert scaler is not None
    assert (scaler.scale.item(), scaler.growth_interval, scaler.dynamic) == (32.0, 7, True)
    fixed = precision_of(compute="fp16", loss_scale=8.0).scaler
    assert fixed is not None
    assert (fixed.scale.item(), fixed.dynamic) == (8.0, False)


def test_parameters_without_a_gradient_are_passed_over():
    precision, used, unused = precision_of(compute="fp16", loss_scale=4.0), nn.Linear(2, 1, bias=False), nn.Linear(2, 1)
    precision.backward(used(torch.tensor([[3.0, 4.0]])).sum())
    norm = precision.clip_gradients([*used.parameters(), *unused.parameters()], None)
    assert norm == 5.0
    assert unused.weight.grad is None


def test_only_a_scaler_has_a_state():
    assert precision_of(compute="bf16").state_dict() == {}
    saved = precision_of(compute="fp16", initial_scale_power=9)
    loaded = precision_of(compute="fp16")
    loaded.load_state_dict(saved.state_dict())
    assert loaded.loss_scale == 2.0**9
    precision_of(compute="fp32").load_state_dict(saved.state_dict())
    loaded.load_state_dict({})
    assert loaded.loss_scale == 2.0**9
