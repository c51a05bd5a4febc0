from __future__ import annotations

from typing import Any

import pytest
import torch

from trainbook.errors import UserError
from trainbook.knobs import load
from trainbook.loop import needs as module
from trainbook.loop.needs import needs
from trainbook.plan.gpus import Gpu
from trainbook.tasks import Facts

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def asked(monkeypatch: pytest.MonkeyPatch, gigabytes: float, *knobs: str, recipe: str = "gpt2-124m") -> list[str]:
    gpu = Gpu("a GPU", gigabytes, 1000, 300, 100, 20, 100)
    monkeypatch.setattr(module, "_gpu", lambda device: gpu)
    return needs(load(recipe, knobs).config, Facts(50_257), GPU)


def test_a_run_says_in_one_line_what_it_needs(monkeypatch: pytest.MonkeyPatch):
    (line,) = asked(monkeypatch, 80)
    assert line.startswith("about ") and "of the GPU's 80.0 GB, at the" in line
    (line,) = needs(load("gpt-tiny").config, Facts(257), CPU)
    assert "of memory beside PyTorch itself" in line


def test_what_may_not_fit_is_warned_of_and_gets_advice(monkeypatch: pytest.MonkeyPatch):
    line, warning = asked(monkeypatch, 10)
    assert "of the GPU's 10.0 GB" in line
    assert "fewer rows are taken at a time. Try batch.per_device_train_batch_size=" in warning


def test_what_cannot_fit_with_one_row_is_refused_and_names_the_knobs(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"needs at least .* with one row at a time, but the GPU has .* Try "):
        asked(monkeypatch, 12, "data.max_seq_length=512", recipe="llama-1b")
    with pytest.raises(UserError, match="smaller model or a larger GPU"):
        asked(monkeypatch, 0.05)


def test_a_model_that_cannot_be_planned_trains_without_a_word(monkeypatch: pytest.MonkeyPatch):
    assert needs(load("gpt-tiny", ["model.type=my.module:Net"]).config, Facts(100), CPU) == []

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "_subject", fail)
    assert needs(load("gpt-tiny").config, Facts(257), CPU) == []
