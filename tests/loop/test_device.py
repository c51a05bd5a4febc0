from __future__ import annotations

import pytest
import torch

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.loop.device import choose_device, memory_in_use, prepared_device, should_compile

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
    config = load(None, ["training.deterministic=true", "precision.tf32=false"]).config
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with prepared_device(config, CPU, 16) as said:
        assert torch.are_deterministic_algorithms_enabled() and said["deterministic"] is True
        assert torch.get_float32_matmul_precision() == said["float32_matmul_precision"] == "highest"
        assert torch.backends.cudnn.allow_tf32 is said["cudnn_tf32"] is False
        assert said["threads"] == torch.get_num_threads() and said["compute"] == "fp32"
    assert not torch.are_deterministic_algorithms_enabled()
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_onednn_is_off_for_narrow_models_of_ours_on_arm_only(monkeypatch):
    config = load(None).config
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    for machine, width, expected in [
        ("aarch64", 128, False),
        ("aarch64", 768, True),
        ("aarch64", None, True),
        ("x86_64", 128, True),
    ]:
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        with prepared_device(config, CPU, width) as said:
            assert said["onednn"] is expected


def test_a_device_of_no_known_kind_is_refused():
    with pytest.raises(UserError, match="must be one of auto, cpu, cuda, but got 'gpu'"):
        choose_device("gpu")


def test_memory_is_the_memory_of_this_process():
    amount, kind = memory_in_use(CPU)
    assert kind == "host_rss" and 50e6 < amount < 50e9
