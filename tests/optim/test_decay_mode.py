"""Independent weight decay: what an update takes of a weight depends on the schedule, and not on the peak rate."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainbook.knobs.sections.optimizer import OptimizerKnobs as Knobs
from trainbook.knobs.sections.schedule import ScheduleKnobs
from trainbook.models import named_roles
from trainbook.optim import apply_update, build_optimizer, parameter_groups, shares

YES = torch.tensor(True)
KINDS = ["adamw", "stable_adamw", "lion", "muon", "adamw_8bit", "paged_adamw_8bit"]
each_kind = pytest.mark.parametrize("kind", KINDS)


class Small(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        # 4,608 numbers: 8-bit averages begin at 4,096. The output matrix is AdamW's under muon, too.
        self.matrix, self.norm = nn.Linear(96, 48, dtype=dtype), nn.LayerNorm(48, dtype=dtype)
        self.output = nn.Linear(48, 2, bias=False, dtype=dtype)
        self.output.is_output = True  # pyright: ignore[reportArgumentType]
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def build(kind: str, rate: Tensor, **knobs: Any) -> tuple[Small, Optimizer]:
    if "8bit" in kind:
        pytest.importorskip("bitsandbytes")
    settings = Knobs(type=kind, **knobs)  # pyright: ignore[reportArgumentType]
    module = Small(torch.float32 if "8bit" in kind else torch.float64)
    return module, build_optimizer(parameter_groups(module, named_roles(module), settings), settings, rate)


def shrunk(kind: str, peak: float, schedule: list[float], **knobs: Any) -> dict[str, Tensor]:
    """By what each parameter was multiplied in a run whose gradients are all zero."""
    rate = torch.tensor(0.0)
    module, optimizer = build(kind, rate, learning_rate=peak, **knobs)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for share in schedule:
        rate.fill_(peak * share)
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        apply_update(optimizer, YES)
    return {name: parameter.detach() / before[name] for name, parameter in module.named_parameters()}


SCHEDULE = shares(ScheduleKnobs(type="cosine", floor=0.1), total=40, warmup=8)


@pytest.mark.parametrize("peak", [1.0, 3e-4, 1e-6])
@each_kind
def test_without_gradients_weights_shrink_by_the_product_of_1_minus_decay_times_share(kind: str, peak: float):
    factors = shrunk(kind, peak, SCHEDULE, weight_decay=0.01, weight_decay_mode="independent")
    expected = math.prod(1 - 0.01 * share for share in SCHEDULE)
    assert expected < 0.83
    rounding = 1e-5 if "8bit" in kind else 1e-8  # the rate is a number of 32 bits, 8-bit kernels compute in 32
    for name in ("matrix.weight", "output.weight"):
        torch.testing.assert_close(factors[name], torch.full_like(factors[name], expected), rtol=rounding, atol=0)
    for name in ("matrix.bias", "norm.weight", "norm.bias"):
        assert (factors[name] == 1).all(), "neither norms nor biases decay"


@each_kind
def test_where_every_number_is_exact_so_is_the_decay(kind: str):
    factors = shrunk(kind, 2.0**-10, [0.5, 1.0], weight_decay=2.0**-7, weight_decay_mode="independent")
    expected = (1 - 2.0**-8) * (1 - 2.0**-7)
    tolerance = 3e-7 if "8bit" in kind else 0
    for name in ("matrix.weight", "output.weight"):
        torch.testing.assert_close(factors[name], torch.full_like(factors[name], expected), rtol=tolerance, atol=1e-15)


@each_kind
def test_scaled_decay_grows_with_the_peak_and_is_the_same_where_both_products_are(kind: str):
    scaled = [shrunk(kind, peak, SCHEDULE, weight_decay=0.5)["matrix.weight"] for peak in (0.01, 0.02)]
    for factors, peak in zip(scaled, (0.01, 0.02), strict=True):
        expected = math.prod(1 - peak * 0.5 * share for share in SCHEDULE)
        torch.testing.assert_close(factors, torch.full_like(factors, expected), rtol=1e-5, atol=0)
    independent = shrunk(kind, 0.01, SCHEDULE, weight_decay=0.005, weight_decay_mode="independent")
    torch.testing.assert_close(independent["matrix.weight"], scaled[0], rtol=1e-5, atol=0)


@each_kind
def test_only_the_decay_is_another_and_not_what_gradients_do(kind: str):
    """With decay x peak equal, both modes make the same updates from the same gradients."""
    peak, found = 2.0**-8, []
    for knobs in ({"weight_decay": 0.25}, {"weight_decay": 0.25 * peak, "weight_decay_mode": "independent"}):
        rate = torch.tensor(0.0)
        module, optimizer = build(kind, rate, learning_rate=peak, **knobs)
        for step, share in enumerate(SCHEDULE[:12]):
            rate.fill_(peak * share)
            generator = torch.Generator().manual_seed(step)
            for parameter in module.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            apply_update(optimizer, YES)
        found.append([parameter.detach().clone() for parameter in module.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)
