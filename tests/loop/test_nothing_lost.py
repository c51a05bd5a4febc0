"""Work that would be lost, repeated or left out without a word."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainbook
from trainbook.errors import Diverged, ResumeError, TrainbookError, UserError
from trainbook.loop import build as build_module
from trainbook.loop import train as train_module
from trainbook.loop.run_io import StoreEvents


@pytest.mark.parametrize("strategy", ["no", "epoch"])
def test_a_run_without_evaluations_on_its_way_still_saves_on_its_way(lab, strategy):
    lab.train(
        f"evaluation.eval_strategy={strategy}", "eval_steps=null", "training.max_steps=20", "save_total_limit=null"
    )
    assert lab.steps_saved() == list(range(2, 21, 2))


def test_a_folder_with_checkpoints_is_never_taken_away(lab):
    lab.train()
    lab.open().manifest.unlink()
    with pytest.raises(TrainbookError):
        lab.train("data.source=nowhere.txt")
    assert lab.steps_saved() == [6, 12]


def test_an_evaluation_that_failed_is_made_up_when_the_run_goes_on(lab, monkeypatch):
    real = build_module.evaluate
    lab.train(name="whole")

    def fails_at_the_end(state, *rest):
        if state.step == 12:
            raise RuntimeError("no memory left for the evaluation")
        return real(state, *rest)

    monkeypatch.setattr(build_module, "evaluate", fails_at_the_end)
    with pytest.raises(RuntimeError):
        lab.train()
    monkeypatch.setattr(build_module, "evaluate", real)
    assert lab.train().ended == "finished"
    lab.must_be_equal("run", "whole")


def test_the_evaluation_before_the_first_step_is_not_repeated(lab):
    with lab.crashing_at(2):
        lab.train("evaluation.eval_on_start=true")
    lab.train("evaluation.eval_on_start=true")
    first = [row for row in lab.open().metrics("eval", raw=True) if row["step"] == 0]
    assert [row["best"] for row in first] == [True]


def test_skips_between_two_rows_are_told_without_waiting_for_the_next_one(lab):
    rare = ("logging.logging_steps=100", "logging.dense_steps=0", "guard.max_rollbacks=0")
    with lab.poisoned_at(*range(2, 99)), pytest.raises(Diverged, match="step 8: 7 updates in a row"):
        lab.train(*rare, "guard.max_consecutive_skips=4")
    assert [event["step"] for event in lab.events("skip")] == list(range(2, 9))


def test_a_row_of_skips_that_has_ended_is_no_trouble_any_more(lab):
    with lab.poisoned_at(3, 4, 5, 6):
        lab.train("guard.max_consecutive_skips=4", "logging.logging_steps=100", "logging.dense_steps=0")
    assert [event["step"] for event in lab.events("skip")] == [3, 4, 5, 6] and lab.events("rollback") == []


@pytest.mark.parametrize(("lost", "said"), [(1, "resumed from step 6"), (None, "training starts over")])
def test_a_checkpoint_that_is_gone_is_told(lab, lost, said):
    lab.train("checkpoint.save_steps=3", name="whole")
    with lab.crashing_at(11):
        lab.train("checkpoint.save_steps=3")
    for step in lab.steps_saved()[::-1][:lost]:
        shutil.rmtree(lab.open().checkpoints / f"step-{step:08d}")
    lab.train("checkpoint.save_steps=3")
    (event,) = lab.events("checkpoint_damaged")
    assert event["reason"] == f"the checkpoint of step 9, the newest one written, is missing: {said}"
    assert lab.rows() == lab.rows("whole") and lab.events("checkpoint_damaged", "whole") == []


def test_a_checkpoint_that_made_room_for_one_that_nobody_told_of_is_not_missed(lab, monkeypatch):
    """A process that is killed soon after a save has not come to tell of it."""
    hear = StoreEvents.__call__

    def hear_of_the_first(self, kind, facts):
        if facts["step"] == 3:
            hear(self, kind, facts)

    one = ("checkpoint.save_steps=3", "checkpoint.save_total_limit=1")
    with monkeypatch.context() as deaf, lab.crashing_at(11):
        deaf.setattr(StoreEvents, "__call__", hear_of_the_first)
        lab.train(*one)
    assert [event["step"] for event in lab.events("checkpoint")] == [3] and 3 not in lab.steps_saved()
    lab.train(*one)
    assert lab.events("checkpoint_damaged") == []


def test_another_metric_starts_anew_what_is_best(lab):
    with lab.interrupted_at(7):
        lab.train()
    lab.train("metric_for_best_model=accuracy", accept_changes=True)
    assert lab.rows(split="eval")[-1]["best"] is True
    assert lab.state()["progress"]["best_value"] == lab.rows(split="eval")[-1]["accuracy"]


def test_another_batch_size_goes_on_at_the_next_sample(lab, monkeypatch):
    seen = []
    real = train_module.train_step

    def watched(state, batch, **how):
        seen.append(batch.ids.copy())
        return real(state, batch, **how)

    monkeypatch.setattr(train_module, "train_step", watched)
    lab.train("data.shuffle=false", name="whole")
    expected = np.concatenate(seen)[: 5 * 4 + 3 * 2]
    seen.clear()
    with lab.interrupted_at(5):
        lab.train("data.shuffle=false")
    lab.train("data.shuffle=false", "batch_size=2", "max_steps=8", accept_changes=True)
    assert np.array_equal(np.concatenate(seen), expected)


def test_other_data_is_refused_without_advice_that_would_not_work(lab, tmp_path):
    lab.train()
    other = tmp_path / "other.txt"
    other.write_text("something else " * 100)
    with pytest.raises(ResumeError) as error:
        lab.train(f"data.source={other}", accept_changes=True)
    assert "--accept-changes" not in str(error.value)


def test_a_resumed_run_remembers_where_its_values_came_from(lab):
    with lab.interrupted_at(7):
        lab.train("logging.logging_steps=5")
    before = lab.open().config.read_text().splitlines()
    trainbook.resume(lab.open().path, ["logging.logging_steps=3"], quiet=True)
    after = lab.open().config.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [("  logging_steps: 5  # override", "  logging_steps: 3  # override")]


def test_a_loader_with_a_generator_of_its_own_is_resumed_bit_for_bit(lab):
    def fit(name: str) -> list[torch.Tensor]:
        torch.manual_seed(5)
        model = nn.Linear(3, 1)
        data = TensorDataset(torch.arange(60.0).view(20, 3) / 60, torch.arange(20.0).view(20, 1) / 20)
        loader = DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9))
        options = {"name": name, "runs_dir": lab.runs, "quiet": True, "max_steps": 12, "save_steps": 3}
        trainbook.fit(model, loader, loss=lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), **options)
        return [parameter.detach().clone() for parameter in model.parameters()]

    whole = fit("whole")
    with lab.crashing_at(9):
        fit("cut")
    assert all(torch.equal(one, other) for one, other in zip(fit("cut"), whole, strict=True))


def test_a_fit_that_is_called_again_after_its_end_gives_the_trained_model(lab):
    def fit() -> torch.Tensor:
        model = nn.Linear(3, 1)
        data = [(torch.ones(2, 3), torch.ones(2, 1))] * 4
        options: dict[str, Any] = {"name": "own", "runs_dir": lab.runs, "quiet": True, "max_steps": 8}
        trainbook.fit(model, data, loss=lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), **options)
        return model.weight.detach().clone()

    assert torch.equal(fit(), fit())
    with pytest.raises(ResumeError, match="the checkpoint belongs to a different model"):
        other = nn.Linear(5, 1)
        trainbook.fit(other, [], loss=lambda m, b: m(b), name="own", runs_dir=lab.runs, quiet=True, max_steps=8)


def test_a_rejected_batch_does_not_reach_the_averages_of_a_batch_norm(lab):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    bad = torch.full((6, 3), float("nan"))
    data = [(x, torch.ones(6, 1)) for x in (torch.randn(6, 3), bad, torch.randn(6, 3))]
    options: dict[str, Any] = {"runs_dir": lab.runs, "quiet": True, "max_steps": 6}
    trainbook.fit(model, data, loss=lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), **options)
    state = model.state_dict()
    assert all(torch.isfinite(value.double()).all() for value in state.values())
    assert int(state["1.num_batches_tracked"]) == 6  # applied updates, not attempted ones


def test_a_model_without_anything_to_train_is_refused(lab):
    model = nn.Linear(1, 1).requires_grad_(False)
    with pytest.raises(UserError, match="nothing to train"):
        trainbook.fit(model, [1], loss=lambda m, b: m(b), runs_dir=lab.runs, quiet=True, max_steps=1)


def test_a_loss_that_does_not_depend_on_the_model_is_refused(lab):
    with pytest.raises(UserError, match="must depend on the model's parameters"):
        trainbook.fit(
            nn.Linear(1, 1), [1], loss=lambda m, b: torch.zeros(()), runs_dir=lab.runs, quiet=True, max_steps=1
        )


def test_a_configuration_edited_by_hand_is_compared_with_what_was_trained(lab):
    with lab.interrupted_at(7):
        lab.train()
    config = lab.open().config
    config.write_text(config.read_text().replace("learning_rate: 0.01", "learning_rate: 0.5"))
    with pytest.raises(ResumeError, match=r"optimizer.learning_rate: 0.01 -> 0.5"):
        trainbook.resume(lab.open().path, quiet=True)


def test_a_run_cannot_be_shortened_behind_its_own_place(lab):
    with lab.interrupted_at(7):
        lab.train()
    with pytest.raises(ResumeError, match="has already applied 7 updates, more than the 5"):
        lab.train("max_steps=5", accept_changes=True)
