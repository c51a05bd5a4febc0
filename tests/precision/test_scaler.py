from __future__ import annotations

import torch

from trainbook.precision import LossScaler

CPU = torch.device("cpu")


def dynamic(power: int = 16, growth_interval: int = 3) -> LossScaler:
    return LossScaler(CPU, initial_scale=2.0**power, growth_interval=growth_interval, dynamic=True)


def powers(scaler: LossScaler, overflows: list[bool]) -> list[float]:
    """log2 of the scale after each step."""
    found = []
    for overflowed in overflows:
        scaler.update(torch.tensor(overflowed))
        found.append(scaler.scale.log2().item())
    return found


def test_the_scale_halves_at_an_overflow_and_doubles_after_clean_steps():
    overflows = [step in (4, 5) for step in range(12)]
    assert powers(dynamic(), overflows) == [16, 16, 17, 17, 16, 15, 15, 15, 16, 16, 16, 17]


def test_the_scale_is_that_of_torchs_scaler_over_random_overflows():
    generator = torch.Generator().manual_seed(0)
    overflows = (torch.rand(400, generator=generator) < 0.15).tolist()
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    reference = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=4)
    expected = []
    for overflowed in overflows:
        reference.scale(weight.sum()).backward()
        if overflowed:
            weight.grad = torch.full_like(weight, float("inf"))
        reference.step(optimizer)
        reference.update()
        optimizer.zero_grad()
        expected.append(torch.tensor(reference.get_scale()).log2().item())
    assert powers(dynamic(growth_interval=4), overflows) == expected
    assert len(set(expected)) > 5


def test_a_fixed_scale_never_moves():
    scaler = LossScaler(CPU, initial_scale=1024.0, growth_interval=1, dynamic=False)
    assert powers(scaler, [True, False, False, True]) == [10] * 4


def test_scale_and_clean_steps_survive_saving():
    overflows = [False, False, True, False, False, False, False]
    whole = powers(dynamic(), overflows)
    for cut in range(len(overflows)):
        first, second = dynamic(), dynamic(power=3)
        before = powers(first, overflows[:cut])
        second.load_state_dict(first.state_dict())
        assert before + powers(second, overflows[cut:]) == whole


def test_a_fixed_scale_is_the_configurations_and_not_the_saved_one():
    scaler = LossScaler(CPU, initial_scale=1024.0, growth_interval=2000, dynamic=False)
    scaler.load_state_dict(dynamic().state_dict())
    assert scaler.scale == 1024
