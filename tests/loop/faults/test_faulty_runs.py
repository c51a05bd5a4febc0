"""Runs with faults in them: what they say, and what they make of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from trainbook.errors import CheckpointError, ConfigError


def reasons(lab: Any, kind: str) -> list[str]:
    return [event["reason"] for event in lab.events(kind)]


def test_a_run_says_from_its_first_lines_on_what_is_put_in(lab, capsys):
    lab.train(inject=["nan-gradient@5", "repeated-tokens@3", "kill@500"], quiet=False)
    manifest = lab.open().read_manifest()
    assert manifest.injected_faults == ["nan-gradient@5", "repeated-tokens@3", "kill@500"]
    shown = capsys.readouterr().out
    announced = "injected faults: nan-gradient@5, repeated-tokens@3, kill@500"
    assert announced in shown and shown.index(announced) < shown.index("step      1/")
    assert [(event["step"], event["fault"]) for event in lab.events("inject")] == [
        (0, "repeated-tokens@3"),
        (5, "nan-gradient@5"),
    ]
    assert len(lab.events("inject")[0]["ids"]) == 4
    assert reasons(lab, "notice")[-1] == "the run ended before kill@500 could be injected"
    assert [event["step"] for event in lab.events("skip")] == [5]


def test_a_resumed_run_has_only_the_faults_that_it_is_given(lab):
    lab.train(name="whole")
    with lab.interrupted_at(7):
        lab.train(inject=["nan-gradient@9"])
    lab.train(inject=["dead-tracker@3"])
    lab.must_be_equal("whole", "run")
    assert lab.events("inject") == []
    assert lab.open().read_manifest().injected_faults == ["nan-gradient@9", "dead-tracker@3"]
    assert "dead-tracker@3 is ignored: the run continues from step 7" in reasons(lab, "notice")


def test_a_disk_that_is_full_for_a_while_is_said_and_costs_nothing(lab):
    lab.train("checkpoint.save_steps=2", name="whole")
    with suppress(CheckpointError):  # a run that ends at it is resumed
        lab.train("checkpoint.save_steps=2", inject=["full-disk@6"])
    assert [event["fault"] for event in lab.events("inject")] == ["full-disk@6"]
    told = [event for event in lab.open().events(raw=True) if "the disk is full" in str(event.get("reason"))]
    assert told
    if lab.open().read_manifest().status != "finished":
        lab.train("checkpoint.save_steps=2")
    lab.must_be_equal("whole", "run")


def test_a_run_without_faults_says_nothing_of_them(lab):
    lab.train()
    assert lab.open().read_manifest().injected_faults == [] and reasons(lab, "notice") == []


def test_a_mistake_in_a_fault_leaves_no_run(lab):
    with pytest.raises(ConfigError, match="Did you mean 'nan-gradient"):
        lab.train(inject=["nan-gradiant@5"])
    assert not lab.runs.exists()


def fit(lab: Any, **options: Any) -> Any:
    import trainbook

    data = [torch.full((4, 3), float(number)) / 10 for number in range(5)]

    def loss(model: Callable[..., torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        return (model(batch) - 1).square().mean()

    model = torch.nn.Linear(3, 1)
    return trainbook.fit(model, data, loss=loss, name="own", runs_dir=lab.runs, quiet=True, max_steps=8, **options)


def test_a_module_of_the_users_own_meets_them_too(lab):
    fit(lab, inject=["nan-gradient@3"])
    assert [event["step"] for event in lab.events("inject", "own")] == [3]
    assert [event["step"] for event in lab.events("skip", "own")] == [3]


def test_data_of_the_users_own_cannot_be_spoilt(lab):
    with pytest.raises(ConfigError, match="random-labels@3: has no effect on data of your own"):
        fit(lab, inject=["random-labels@3"])
    with suppress(FileNotFoundError):
        assert list(lab.runs.iterdir()) == []
