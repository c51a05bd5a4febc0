"""Parameters that a loss depends on and that something else trains."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainbook.loop.other_parameters import FOLLOWED, OtherParameters


def trained(other: nn.Module, loss_of, updates_other: bool = True) -> dict:
    """The facts after three steps of a generator, with those of another module in between."""
    torch.manual_seed(0)
    generator = nn.Linear(4, 3)
    own, its = torch.optim.Adam(generator.parameters()), torch.optim.Adam(other.parameters())
    others = OtherParameters(generator.parameters())
    for _ in range(3):
        if updates_other:
            other(torch.randn(5, 3)).mean().backward()
            its.step()
        loss: Tensor = loss_of(generator(torch.randn(5, 4)), other)
        own.zero_grad()
        loss.backward()
        own.step()
        its.zero_grad()
        others.note(loss)
    return others.facts()


def test_a_discriminator_is_seen_in_the_loss_of_a_generator():
    found = trained(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), lambda made, other: other(made).mean())
    assert found == {"other_trained_parameters": 4}


def test_all_are_counted_though_a_few_are_followed():
    many = nn.Sequential(*[nn.Linear(3, 3) for _ in range(FOLLOWED)])
    assert trained(many, lambda made, other: other(made).mean()) == {"other_trained_parameters": 2 * FOLLOWED}


def test_a_fixed_network_in_the_loss_is_no_opponent():
    assert trained(nn.Linear(3, 1), lambda made, other: other(made).mean(), updates_other=False) == {}
    frozen = nn.Linear(3, 1)
    assert trained(frozen, lambda made, other: (made - other(made).detach()).square().mean()) == {}


def test_a_loss_of_its_own_parameters_alone_has_none():
    assert trained(nn.Linear(3, 1), lambda made, _: made.square().mean()) == {}


def test_odd_losses_are_left_alone():
    others = OtherParameters([])
    others.note(torch.tensor(1.0))
    assert others.facts() == {}
