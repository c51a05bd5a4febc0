"""Commands on a run that `fit` made or `watch` recorded, of which only some can be carried out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trainbook

WATCHED = "was recorded by trainbook.watch"
FITTED = "was made by trainbook.fit"


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


@pytest.fixture
def recorded(terminal):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trainbook.watch(model, optimizer, name="watched") as watch:
        for batch in torch.randn(3, 8, 4):
            value = loss(model, batch)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(value)
    trainbook.fit(model, list(torch.randn(3, 8, 4)), loss=loss, name="fitted", max_steps=3, quiet=True)
    return terminal


def test_a_watched_run_cannot_be_resumed_and_is_told_why(recorded):
    told = recorded("resume", "watched", code=2).stderr
    assert f"{WATCHED} and has no checkpoints" in told and "restore" not in told


@pytest.mark.parametrize(("run", "why"), [("watched", WATCHED), ("fitted", FITTED)])
def test_what_needs_a_model_of_the_run_folder_says_that_there_is_none(recorded, run: str, why: str):
    for command in (("generate", run, "x"), ("predict", run, "text.txt"), ("export", run, "--to", "out")):
        told = recorded(*command, code=2).stderr
        assert why in told and "tokenizer" not in told


def test_the_configuration_of_a_fit_trains_no_other_model(recorded):
    file = "runs/fitted/config.yaml"
    for command in (("train",), ("train", "--dry-run"), ("check",), ("plan",), ("tune",), ("transfer", "--rates")):
        told = recorded(command[0], file, *command[1:], code=2).stderr
        assert f"{file} does not describe a model or data" in told
    told = recorded("train", "gpt-tiny", "model.pretrained=runs/fitted", code=2).stderr
    assert "model.pretrained: runs/fitted was made by trainbook.fit" in told


def test_a_finished_run_that_is_trained_again_says_that_nothing_was_trained(terminal):
    terminal.train("--name", "first", "--quiet")
    for again in (terminal.train("--name", "first"), terminal("resume", "first")):
        assert "runs/first is already finished: nothing was trained." in again.stdout
