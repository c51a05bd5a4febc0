from __future__ import annotations

import pytest
import torch
from torch import nn

from trainbook.optim import apply_update
from trainbook.optim.optimizers import Lion

YES = torch.tensor(True)


def test_updates_are_those_of_bitsandbytes():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(30, 40, generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = Lion([{"params": [ours], "weight_decay": 0.5}], torch.tensor(2.0**-7), (0.9, 0.98))
    reference = bitsandbytes.optim.Lion([theirs], lr=2.0**-7, betas=(0.9, 0.98), weight_decay=0.5)
    for _ in range(30):
        gradient = torch.randn(30, 40, generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        apply_update(optimizer, YES)
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(optimizer.state[ours]["exp_avg"], reference.state[theirs]["state1"])


def test_every_weight_moves_by_the_rate_whatever_its_gradient():
    weight = nn.Parameter(torch.zeros(4))
    optimizer = Lion([{"params": [weight]}], torch.tensor(0.125), (0.9, 0.99))
    for number in range(1, 5):
        weight.grad = torch.tensor([1e-12, -3.0, 1e9, 0.0])
        apply_update(optimizer, YES)
        assert weight.tolist() == [-0.125 * number, 0.125 * number, -0.125 * number, 0.0]


def test_the_step_leans_on_the_new_gradient_and_the_memory_on_the_past():
    """After k gradients of 1 the average is 1 - beta2^k. One of -10 then wins the sign at once, but not the average."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = Lion([{"params": [weight]}], torch.tensor(1.0), (0.9, 0.99))
    for _ in range(50):
        weight.grad = torch.ones_like(weight)
        apply_update(optimizer, YES)
    average = float(optimizer.state[weight]["exp_avg"])
    assert average == pytest.approx(1 - 0.99**50, rel=1e-12)
    weight.grad = torch.full_like(weight, -10.0)
    apply_update(optimizer, YES)
    assert float(weight.detach()) == -49.0, "0.9 x average - 0.1 x 10 is negative"
    assert float(optimizer.state[weight]["exp_avg"]) == pytest.approx(0.99 * average - 0.1, rel=1e-12)
    weight.grad = torch.zeros_like(weight)
    apply_update(optimizer, YES)
    assert float(weight.detach()) == -50.0, "what is remembered is still positive"


def test_decay_is_by_rate_times_weight_decay_beside_the_sign():
    weight = nn.Parameter(torch.full((3,), 8.0, dtype=torch.float64))
    optimizer = Lion([{"params": [weight], "weight_decay": 0.5}], torch.tensor(0.25), (0.9, 0.99))
    weight.grad = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    apply_update(optimizer, YES)
    assert weight.tolist() == [8 - 1 - 0.25, 8 - 1 + 0.25, 8 - 1]
