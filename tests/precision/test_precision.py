from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainbook.knobs.sections.precision import PrecisionKnobs as Knobs
from trainbook.precision import Precision, resolve_compute

CPU = torch.device("cpu")
YES, NO = torch.tensor(True), torch.tensor(False)


def precision_of(**knobs: Any) -> Precision:
    return Precision(Knobs(**knobs), CPU)


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
    norm = precision.clip_gradients(model.parameters(), max_norm).norm
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
    precision.after_update(torch.tensor(norm), NO)
    assert not torch.tensor(norm).isfinite() and precision.loss_scale == 2.0**19
    precision.after_update(torch.tensor(1.0), YES)
    assert precision.loss_scale == 2.0**19


def test_a_scale_learns_from_overflows_and_not_from_what_a_guard_rejects():
    precision = precision_of(compute="fp16", growth_interval=2)
    for verdict in (NO, NO):
        precision.after_update(torch.tensor(1.0), verdict)
    assert precision.loss_scale == 2.0**17


def test_an_overflow_may_be_the_scales_doing_while_that_moves_and_is_above_1():
    precision = precision_of(compute="fp16", initial_scale_power=1)
    for expected in (True, False, False):
        assert precision.can_be_lowered is not None and bool(precision.can_be_lowered) is expected
        precision.after_update(torch.tensor(torch.inf), NO)
    assert precision_of(compute="fp16", loss_scale=1024.0).can_be_lowered is None
    assert precision_of(compute="bf16").can_be_lowered is None


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
    clipped = precision.clip_gradients([*unused.parameters(), *used.parameters()], None)
    assert clipped.norm == 5.0 and clipped.per_tensor == [5.0]
    assert unused.weight.grad is None


def test_only_a_scaler_and_an_adaptive_bound_have_a_state():
    assert precision_of(compute="bf16").state_dict() == {}
    saved = precision_of(compute="fp16", initial_scale_power=9)
    loaded = precision_of(compute="fp16")
    loaded.load_state_dict(saved.state_dict())
    assert loaded.loss_scale == 2.0**9
    precision_of(compute="fp32").load_state_dict(saved.state_dict())
    loaded.load_state_dict({})
    assert loaded.loss_scale == 2.0**9
