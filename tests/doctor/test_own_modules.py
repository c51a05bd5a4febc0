"""Runs of `trainbook.fit`: what is judged of a module of the user's own, and how a change is advised."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.doctor.records import run, set_to

import trainbook
from trainbook.api import Result
from trainbook.doctor import Diagnosis, diagnose
from trainbook.doctor.remedies import change, lower_rate
from trainbook.doctor.render import render
from trainbook.doctor.view import View
from trainbook.errors import UserError
from trainbook.knobs.aliases import by_path
from trainbook.knobs.loading import load
from trainbook.knobs.own_module import applies_to_fit, as_keyword_argument, keyword_of
from trainbook.report import make_card
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord, told_by
from trainbook.study.remedy_plan import choose
from trainbook.terminal import new_console

pytestmark = pytest.mark.usefixtures("rules_alone")


def fit(folder: Path, **knobs: Any) -> Result:
    """README's own example, shorter."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    data = [(x, x.sum(-1, keepdim=True)) for x in torch.randn(50, 16, 8)]

    def loss(model, batch):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(model(inputs), targets)

    knobs = {"max_steps": 60, "learning_rate": 1e-2, **knobs}
    return trainbook.fit(model, data, loss=loss, name="own", runs_dir=folder, quiet=True, **knobs)


def of_fit(record: RunRecord) -> RunRecord:
    """The same rows, as if a module of the user's own had been trained."""
    origin, settings, config = told_by(record.config, "fit")
    return RunRecord(record.name, record.train, record.evaluations, record.events, settings, config, {}, origin)


def told(record: RunRecord, diagnosis: Diagnosis) -> str:
    file = StringIO()
    render(record, diagnosis, new_console(file=file, width=200), show_all=True)
    return file.getvalue()


def test_a_module_that_learned_little_is_told_how_much_of_it_is_frozen(tmp_path: Path):
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model[0].requires_grad_(False)
    data = [(x, (x[:, :1] * x[:, 1:2])) for x in torch.randn(50, 16, 8, generator=torch.Generator().manual_seed(0))]
    made = trainbook.fit(
        model,
        data,
        loss=lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]),
        name="frozen",
        runs_dir=tmp_path,
        quiet=True,
        max_steps=60,
    )
    found = next(each for each in diagnose(open_record(made.run.path)).findings if each.rule == "parameters-frozen")
    assert found.severity == "info" and "288 of 321 parameters (90%) are frozen" in found.evidence


def test_the_example_of_the_readme_ends_without_a_warning_and_counts_its_samples(tmp_path: Path):
    made = fit(tmp_path).run
    card = dict(make_card(made).lines)
    assert card["doctor"].startswith("no problems found")
    assert "60 steps, 960 samples" in card["steps"] and card["speed"].endswith(" samples per second of training")
    events = [json.loads(line) for line in (made.path / "events.jsonl").read_text().splitlines()]
    assert not [event for event in events if event["kind"] == "finding"]
    record = open_record(made.path)
    assert "model.hidden_size" not in record.settings and record.settings["optimizer.learning_rate"] == 1e-2
    shown = told(record, diagnose(record))
    assert "skipped: no usual learning rate is known for this kind of model (rate-for-the-case)" in shown
    assert "skipped: loss_scale was not logged (loss-scale)" in shown
    assert "trainbook train" not in shown


def test_a_change_is_advised_as_a_keyword_argument_of_fit(tmp_path: Path):
    record = of_fit(run(each=set_to(loss=lambda step: 2.0 + step / 50, cross_entropy=None)))
    first = diagnose(record).findings[0]
    assert first.override is not None and first.override.startswith("learning_rate=")
    shown = told(record, diagnose(record))
    assert f"→ trainbook.fit(…, {first.override})" in shown and "trainbook train" not in shown
    record = replace(record, name="own", path=tmp_path / "own")
    with pytest.raises(UserError, match="Train a new one with the change, and compare the two runs") as refused:
        choose(record, [first])
    call = f'trainbook.fit(new_model, data, loss=loss, …, name="own-tried", runs_dir="{tmp_path}", {first.override})'
    compare = f"trainbook compare {tmp_path}/own {tmp_path}/own-tried"
    assert f":\n  {call}\n  {compare}" in str(refused.value)
    assert f"  try     {call}\n          {compare}\n" in told(record, diagnose(record))


def test_the_card_of_fit_names_the_call_and_no_command_that_trains_another_model(tmp_path: Path):
    card = make_card(fit(tmp_path, learning_rate=30.0, guard_enabled=False, max_grad_norm=None).run)
    commands = [command for command, _ in card.next_commands]
    assert any(command.startswith("trainbook.fit(…, ") for command in commands)
    assert not any(command.startswith(("trainbook train", "trainbook explain /")) for command in commands)


def test_every_keyword_that_is_advised_is_one_that_fit_takes():
    for path in by_path():
        if applies_to_fit(path):
            name = keyword_of(path)
            assert name.isidentifier()
            value = load(None).get(path)
            if value is not None and not isinstance(value, tuple):
                written = str(value).lower() if isinstance(value, bool) else str(value)
                assert load(None, [f"{name}={written}"]).get(path) == value
    assert as_keyword_argument("precision.compute=bf16") == "compute='bf16'"
    assert as_keyword_argument("guard.enabled=true") == "guard_enabled=True"
    assert as_keyword_argument("model.dropout=0.1") is None


def test_knobs_of_the_model_are_not_advised_where_the_module_is_the_users_own():
    own = View(of_fit(run()))
    assert change(own, "model.dropout", 0.1) is None and change(own, "data.shuffle", False) is None
    named = View(run("model.type=tests.doctor.records:Nothing"))
    assert change(named, "model.qk_norm", True) is None
    assert change(named, "batch.max_grad_norm", 0.5) == "batch.max_grad_norm=0.5"
    assert lower_rate(named) is not None


def test_a_run_of_unknown_size_is_held_against_the_whole_range():
    def hugging_face(rate: float) -> list[str]:
        rows = [{"step": step, "loss": 3.0 - step / 100, "learning_rate": rate} for step in range(1, 100)]
        record = RunRecord("theirs", rows, [], settings={"optimizer.learning_rate": rate}, origin="huggingface")
        return [each.cause for each in diagnose(record).findings if each.rule == "rate-for-the-case"]

    assert hugging_face(3e-4) == hugging_face(5e-3) == hugging_face(2e-5) == []
    assert hugging_face(0.1) == ["learning-rate-high"] and hugging_face(1e-6) == ["learning-rate-low"]


def test_a_loader_that_takes_most_of_a_second_in_all_is_no_news():
    waits = set_to(data_wait_seconds=0.8e-3, step_seconds=1e-3)
    found = [each for each in diagnose(run(each=waits)).findings if each.cause == "loader-slow"]
    assert [each.severity for each in found] == ["info"]
    slow = set_to(data_wait_seconds=0.16, step_seconds=0.2)
    assert [each.severity for each in diagnose(run(each=slow)).findings if each.cause == "loader-slow"] == ["error"]
