from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch
from tests.conftest import later, needs
from torch import Tensor, nn
from torch.optim import Optimizer

from trainbook.errors import MissingExtra, UserError
from trainbook.knobs.sections.optimizer import OptimizerKnobs as Knobs
from trainbook.models import named_roles
from trainbook.optim import apply_update, build_optimizer, optimizers, parameter_groups

pytestmark = needs("bitsandbytes")
bitsandbytes = later("bitsandbytes")
YES = torch.tensor(True)


def build(module: nn.Module, rate: Tensor, kind: str = "adamw_8bit", **knobs: Any) -> Optimizer:
    settings = Knobs(type=kind, weight_decay=0.1, **knobs)  # pyright: ignore[reportArgumentType]
    return build_optimizer(parameter_groups(module, named_roles(module), settings), settings, rate)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(96, 200), nn.LayerNorm(200), nn.Linear(200, 96))


def set_gradients(module: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def test_updates_are_the_librarys_own_to_the_bit():
    ours, theirs, rate = network(), network(), torch.tensor(0.0)
    optimizer = build(ours, rate)
    groups = [
        {"params": [theirs[0].weight, theirs[2].weight], "weight_decay": 0.1},
        {"params": [theirs[0].bias, *theirs[1].parameters(), theirs[2].bias], "weight_decay": 0.0},
    ]
    reference = bitsandbytes.optim.AdamW8bit(groups, betas=(0.9, 0.95), eps=1e-8)
    for step in range(8):
        rate.fill_(1e-3 * (step + 1))
        for group in reference.param_groups:
            group["lr"] = float(rate)
        for module in (ours, theirs):
            set_gradients(module, step)
        apply_update(optimizer, YES)
        reference.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)
    assert all(group["lr"] is rate for group in optimizer.param_groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_parameters_keep_at_most_2_1_bytes_each_and_small_ones_eight(dtype: torch.dtype):
    module = network().to(dtype)
    optimizer = build(module, torch.tensor(1e-3))
    set_gradients(module, 0)
    apply_update(optimizer, YES)
    for name, parameter in module.named_parameters():
        tensors = [value for key, value in optimizer.state[parameter].items() if key[:4] != "qmap" and key != "step"]
        bytes_each = sum(tensor.nbytes for tensor in tensors) / parameter.numel()
        assert bytes_each <= 2.1 if parameter.numel() >= 4096 else bytes_each == 8, name
    maps = {value.data_ptr() for state in optimizer.state.values() for key, value in state.items() if key[:4] == "qmap"}
    assert len(maps) == 2, "the two tables of 256 numbers are shared by all"


def test_the_host_asks_the_device_once_a_step(monkeypatch: pytest.MonkeyPatch):
    module, rate, reads = network(), torch.tensor(1e-3), []
    optimizer = build(module, rate)
    set_gradients(module, 0)
    for name in ("tolist", "item", "__float__", "__bool__", "__int__"):
        real = getattr(Tensor, name)
        monkeypatch.setattr(Tensor, name, lambda self, real=real, name=name: (reads.append(name), real(self))[1])
    optimizer.step_if(YES)  # pyright: ignore[reportAttributeAccessIssue]
    assert reads == ["tolist"]


def test_paged_on_a_cpu_is_the_plain_one_without_a_word():
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("adamw_8bit", "paged_adamw_8bit"):
            module = network()
            optimizer = build(module, torch.tensor(1e-3), kind)
            set_gradients(module, 0)
            apply_update(optimizer, YES)
            found.append(list(module.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_without_the_package_the_message_has_the_pip_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    optimizers._low_bit_class.cache_clear()
    with pytest.raises(MissingExtra, match=r"pip install 'trainbook\[bitsandbytes\]'\. Or set optimizer\.type=adamw"):
        build(network(), torch.tensor(1e-3))
    optimizers._low_bit_class.cache_clear()


def test_weights_that_its_kernels_do_not_know_are_named():
    with pytest.raises(UserError, match=r"0\.weight is torch\.float64"):
        build(network().double(), torch.tensor(1e-3))
