from __future__ import annotations

import pytest
import torch

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.loop.device import choose_device, memory_in_use, prepare_device, should_compile

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("knob", "device", "updates", "compiled"),
    [
        ("auto", GPU, 1000, True),
        ("auto", GPU, 999, False),
        ("auto", CPU, 100_000, False),
        ("on", CPU, 1, True),
        ("off", GPU, 100_000, False),
    ],
)
def test_compiling_is_chosen_where_it_is_earned_back(knob: str, device: torch.device, updates: int, compiled: bool):
    assert should_compile(load(None, [f"memory.compile={knob}"]).config, device, updates) is compiled


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    with pytest.raises(UserError, match="PyTorch sees no GPU"):
        choose_device("cuda")


def test_the_switches_that_are_set_are_the_ones_that_are_said():
    try:
        said = prepare_device(load(None, ["training.deterministic=true", "precision.tf32=true"]).config, CPU)
        assert torch.are_deterministic_algorithms_enabled()
        assert said["deterministic"] is True and said["float32_matmul_precision"] == "highest"
    finally:
        said = prepare_device(load(None, ["precision.tf32=false"]).config, CPU)
    assert not torch.are_deterministic_algorithms_enabled()
    assert said["threads"] == torch.get_num_threads() and said["deterministic"] is False


def test_memory_is_the_memory_of_this_process():
    amount, kind = memory_in_use(CPU)
    assert kind == "host_rss" and 50e6 < amount < 50e9
