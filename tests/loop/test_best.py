"""Which checkpoint is the best, and when to stop for lack of gain."""

from __future__ import annotations

import math

import pytest

from trainbook.loop.progress import RunProgress, load_progress

EVERY_2 = ("evaluation.eval_steps=2", "checkpoint.save_total_limit=1")


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch):
    """Evaluations that answer with given values, by step."""
    from trainbook.loop import build as build_module

    def set_scores(metric: str, values: list[float], losses: list[float] | None = None) -> None:
        def answer(state, task, batches, record=None):
            number = state.step // 2 - 1 if state.step else 0
            value, loss = values[number], losses[number] if losses else 1.0
            return {
                "loss": loss,
                "perplexity": 1.0,
                "accuracy": 0.5,
                "bits_per_token": 1.0,
                metric: value,
                "targets": 1,
            }

        monkeypatch.setattr(build_module, "evaluate", answer)

    return set_scores


def best_rows(lab, name="run"):
    return [row["step"] for row in lab.rows(name, "eval") if row["best"]]


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        ("loss", [3.0, 2.0, 2.5, 2.2, 2.1, 2.3], 4),
        ("perplexity", [30.0, 20.0, 25.0, 19.0, 21.0, 23.0], 8),
        ("accuracy", [0.1, 0.4, 0.3, 0.2, 0.35, 0.3], 4),
    ],
)
def test_the_best_checkpoint_is_kept_whatever_rotation_does(lab, scores, metric, values, best):
    scores(metric, values)
    result = lab.train(*EVERY_2, f"evaluation.metric_for_best_model={metric}")
    assert best_rows(lab)[-1] == best and result.best["step"] == best
    assert lab.steps_saved() == sorted({best, 12})
    assert lab.state(which="best")["loop"]["step"] == best
    assert f"at step {best}" in lab.open().report.read_text()


TIES = [0.5, 1.0, 1.0, 1.0, 0.9, 1.0], [0.1, 0.34, 0.016, 0.2, 0.001, math.nan]


def test_of_equal_values_the_one_with_the_lowest_loss_is_the_best(lab, scores):
    scores("accuracy", *TIES)
    overrides = (*EVERY_2, "evaluation.metric_for_best_model=accuracy")
    result = lab.train(*overrides, name="whole")
    assert best_rows(lab, "whole") == [2, 4, 6] and result.best["step"] == 6
    assert lab.state("whole", "best")["loop"]["step"] == 6
    with lab.interrupted_at(5):
        lab.train(*overrides, name="cut")
    lab.train(*overrides, name="cut")
    assert best_rows(lab, "cut") == [2, 4, 6]
    lab.must_be_equal("whole", "cut")


def test_progress_that_was_saved_without_a_loss_keeps_the_first_of_equal_values():
    progress = RunProgress()
    load_progress(progress, {"best_value": 1.0, "best_step": 4, "metric": "accuracy"})  # by an earlier version
    assert not progress.would_be_best(1.0, 0.01, higher_is_better=True)
    assert progress.would_be_best(1.1, 0.01, higher_is_better=True)


def test_the_best_is_saved_even_where_no_checkpoint_was_due(lab, scores):
    scores("loss", [3.0, 2.0, 2.5, 2.5, 2.5, 2.5])
    lab.train("evaluation.eval_steps=2", "checkpoint.save_steps=5", "checkpoint.save_total_limit=null")
    assert lab.steps_saved() == [2, 4, 5, 10, 12] and lab.state(which="best")["loop"]["step"] == 4


def test_the_best_survives_a_resume(lab, scores):
    scores("accuracy", [0.1, 0.4, 0.3, 0.2, 0.35, 0.3])
    overrides = (*EVERY_2, "evaluation.metric_for_best_model=accuracy")
    with lab.interrupted_at(7):
        lab.train(*overrides)
    lab.train(*overrides)
    assert best_rows(lab) == [2, 4] and lab.steps_saved() == [4, 12]


@pytest.mark.parametrize(
    ("metric", "values", "threshold", "end"),
    [
        ("loss", [3.0, 2.0, 2.5, 2.1, 1.0, 1.0], 0.0, 8),
        ("loss", [3.0, 2.9, 2.8, 2.75, 2.6, 2.5], 0.15, 12),
        ("loss", [3.0, 2.9, 2.86, 2.0, 2.0, 2.0], 0.15, 6),
        ("accuracy", [0.1, 0.2, 0.15, 0.18, 0.9, 0.9], 0.0, 8),
        ("accuracy", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 0.0, 12),
    ],
)
def test_patience_runs_out_after_evaluations_without_gain(lab, scores, metric, values, threshold, end):
    scores(metric, values)
    result = lab.train(
        *EVERY_2,
        f"evaluation.metric_for_best_model={metric}",
        "evaluation.early_stopping_patience=2",
        f"evaluation.early_stopping_threshold={threshold}",
    )
    assert lab.state()["loop"]["step"] == end
    assert result.ended == ("early_stop" if end < 12 else "finished")
    assert len(lab.events("early_stop")) == (end < 12)
    assert lab.open().read_manifest().status == "finished"
    if end < 12:
        assert (
            lab.train(
                *EVERY_2,
                f"evaluation.metric_for_best_model={metric}",
                "evaluation.early_stopping_patience=2",
                f"evaluation.early_stopping_threshold={threshold}",
            ).ended
            == "already finished"
        )


def test_patience_is_counted_on_over_a_resume(lab, scores):
    scores("loss", [3.0, 2.0, 2.5, 2.1, 1.0, 1.0])
    overrides = (*EVERY_2, "evaluation.early_stopping_patience=2")
    with lab.interrupted_at(7):
        lab.train(*overrides)
    assert lab.train(*overrides).ended == "early_stop"
    assert lab.state()["loop"]["step"] == 8


def test_a_run_killed_between_its_last_evaluation_and_its_end_still_ends_there(lab, scores, monkeypatch):
    from trainbook.loop.train import Training

    scores("loss", [3.0, 2.0, 2.5, 2.1, 1.0, 1.0])
    overrides = (*EVERY_2, "evaluation.early_stopping_patience=2")
    real = Training.save

    def save_and_die(self):
        real(self)
        if self.state.step == 8:
            raise RuntimeError("the power went out")

    with monkeypatch.context() as patch:
        patch.setattr(Training, "save", save_and_die)
        with pytest.raises(RuntimeError):
            lab.train(*overrides)
    assert lab.steps_saved()[-1] == 8
    assert lab.train(*overrides).ended == "early_stop"
    assert lab.state()["loop"]["step"] == 8


def test_an_evaluation_that_is_not_a_number_is_never_the_best(lab, scores):
    nan = float("nan")
    scores("loss", [nan, 2.0, nan, 1.5, nan, 1.8])
    lab.train(*EVERY_2, "evaluation.early_stopping_patience=2")
    assert best_rows(lab) == [4, 8] and lab.state(which="best")["loop"]["step"] == 8
    assert math.isnan(lab.rows(split="eval")[0]["loss"])


def test_evaluation_before_the_first_step_is_asked_for(lab):
    lab.train("evaluation.eval_on_start=true")
    assert [row["step"] for row in lab.rows(split="eval")] == [0, 6, 12]
    lab.train(name="without")
    assert [row["step"] for row in lab.rows("without", "eval")] == [6, 12]
    assert lab.rows() == lab.rows("without"), "looking does not change the training"
