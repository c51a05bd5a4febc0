from __future__ import annotations

from typing import Any

import pytest
import torch

from trainbook.errors import TooLarge
from trainbook.knobs import load
from trainbook.loop import memory_forecast as module
from trainbook.loop.memory_forecast import forecast_memory
from trainbook.plan import PlanSubject
from trainbook.plan.gpus import Gpu
from trainbook.tasks import Facts

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def asked(monkeypatch: pytest.MonkeyPatch, gigabytes: float, *knobs: str, recipe: str = "gpt2-124m") -> list[str]:
    gpu = Gpu("a GPU", gigabytes, 1000, 300, 100, 20, 100)
    monkeypatch.setattr(module, "_gpu", lambda device: gpu)
    return forecast_memory(load(recipe, knobs).config, Facts(50_257), GPU)


def test_a_run_says_in_one_line_what_it_needs(monkeypatch: pytest.MonkeyPatch):
    (line,) = asked(monkeypatch, 80)
    assert line.startswith("about ") and "of the GPU's 80.0 GB; peak during the" in line
    (line,) = forecast_memory(load("gpt-tiny").config, Facts(257), CPU)
    assert "of memory besides PyTorch itself" in line


def test_what_may_not_fit_is_warned_of_and_gets_advice(monkeypatch: pytest.MonkeyPatch):
    line, warning = asked(monkeypatch, 10)
    assert "of the GPU's 10.0 GB" in line
    assert "the micro-batch is made smaller. Try batch.per_device_train_batch_size=" in warning


def test_what_cannot_fit_with_one_row_is_refused_and_names_the_knobs(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(TooLarge, match=r"needs at least .* even with a micro-batch of 1, but the GPU has .* Try "):
        asked(monkeypatch, 12, "data.max_seq_length=512", recipe="llama-1b")
    with pytest.raises(TooLarge, match="smaller model or a larger GPU"):
        asked(monkeypatch, 0.05)


@pytest.mark.parametrize("width", ["2e9", "1e6"])
def test_what_cannot_fit_into_the_machine_is_refused_before_anything_is_allocated(width: str):
    config = load("gpt-tiny", [f"model.hidden_size={width}"]).config
    with pytest.raises(TooLarge, match=r"needs at least .* but this machine has .* of memory\. Use a smaller model"):
        forecast_memory(config, Facts(257), CPU)


def test_texts_that_may_be_short_are_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch):
    knobs = ("data.samples=documents", "data.padding=bucketed", "data.max_seq_length=65536")
    assert len(asked(monkeypatch, 40, *knobs)) == 2, "warned of"


def test_what_fits_with_more_rows_at_a_time_is_not_refused_for_one(monkeypatch: pytest.MonkeyPatch):
    # With one row at a time gradients are added up, and fsdp keeps them whole until they are exchanged.
    knobs = ("distributed.strategy=fsdp", "batch.global_batch_size=16", "batch.per_device_train_batch_size=2")
    large = ("model.num_hidden_layers=80", "model.hidden_size=4096", "model.num_attention_heads=32")
    config = load("llama-1b", [*knobs, *large, "data.max_seq_length=512"]).config
    subject = PlanSubject(config, {}, 32_000, None, 8)
    assert module._with_one_row(subject).memory().allocated > subject.memory().allocated
    room = subject.memory().allocated / 1e9 / 1.02
    monkeypatch.setattr(module, "_gpu", lambda device: Gpu("a GPU", room, 1000, 300, 100, 20, 100))
    assert len(forecast_memory(config, Facts(32_000), GPU, world=8)) == 2


def test_what_is_offloaded_is_not_refused(monkeypatch: pytest.MonkeyPatch):
    offloaded = (
        "distributed.strategy=deepspeed",
        "distributed.zero_stage=2",
        "distributed.offload_optimizer=cpu",
        "memory.compile=off",
    )
    assert len(asked(monkeypatch, 5, *offloaded, recipe="llama-1b")) == 2


def test_a_model_that_cannot_be_planned_trains_without_a_word(monkeypatch: pytest.MonkeyPatch):
    assert forecast_memory(load("gpt-tiny", ["model.type=my.module:Net"]).config, Facts(100), CPU) == []

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "_subject", fail)
    assert forecast_memory(load("gpt-tiny").config, Facts(257), CPU) == []
