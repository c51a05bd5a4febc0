"""How long a run is, and at which steps something happens."""

from __future__ import annotations

import math

import pytest


def seen_samples(lab, monkeypatch, *overrides, **options):
    """The ids of all samples that are trained on, batch by batch."""
    from trainbook.loop import train

    batches, real = [], train.train_step

    def seen(state, batch, **how):
        batches.append(batch.ids)
        return real(state, batch, **how)

    monkeypatch.setattr(train, "train_step", seen)
    lab.train(*overrides, **options)
    return [list(map(int, ids)) for ids in batches]


BATCH_24 = ("batch.global_batch_size=24", "schedule.warmup_steps=1")


def test_epochs_are_exact_and_the_last_batch_is_short(lab, monkeypatch):
    data = lab.build(samples="documents").data.train
    assert data.num_samples % 24
    batches = seen_samples(lab, monkeypatch, *BATCH_24, "training.num_train_epochs=2", samples="documents")
    counts = {}
    for ids in batches:
        for sample in ids:
            counts[sample] = counts.get(sample, 0) + 1
    assert counts == dict.fromkeys(counts, 2) and len(counts) == data.num_samples
    assert len(batches) == math.ceil(2 * data.num_samples / 24)
    last = lab.rows()[-1]
    assert last["epoch"] == 2.0
    assert last["tokens"] == 2 * data.num_tokens


@pytest.mark.parametrize("epochs", [0.001, 0.4, 1.1])
def test_a_fraction_of_an_epoch_is_the_nearest_whole_number_of_samples(lab, monkeypatch, epochs: float):
    data = lab.build(samples="documents").data.train
    batches = seen_samples(
        lab,
        monkeypatch,
        "batch.global_batch_size=4",
        "schedule.warmup_steps=0",
        f"training.num_train_epochs={epochs}",
        samples="documents",
    )
    assert sum(map(len, batches)) == max(1, round(epochs * data.num_samples))


@pytest.mark.parametrize("samples", ["windows", "documents"])
def test_a_length_in_tokens_is_reached_by_the_fewest_updates(lab, samples: str):
    data = lab.build(samples=samples).data.train
    per_step = 4 * data.num_tokens / data.num_samples
    lab.train("training.max_tokens=500", samples=samples)
    assert lab.rows()[-1]["step"] == math.ceil(500 / per_step)
    if samples == "windows":
        assert 500 <= lab.rows()[-1]["tokens"] < 500 + per_step


@pytest.mark.parametrize("length", ["training.max_tokens=500", "training.num_train_epochs=0.05"])
def test_a_warm_up_longer_than_the_run_gives_way_when_the_length_is_known(lab, length: str):
    lab.train(length, "schedule.warmup_steps=90")
    total, peak = lab.rows()[-1]["step"], lab.config()["optimizer"]["learning_rate"]
    assert 1 < total < 20
    rates = [row["learning_rate"] for row in lab.rows()]
    assert rates[0] == pytest.approx(peak / 2)
    assert rates[1] == pytest.approx(peak)
    told = [event["reason"] for event in lab.events("notice")]
    assert f"schedule.warmup_steps 90 -> 1: the run has {total} updates." in told


def test_rows_are_dense_at_first_and_then_sparse_and_the_last_step_has_one(lab):
    lab.train("logging.dense_steps=3", "logging.logging_steps=4", "training.max_steps=14")
    assert [row["step"] for row in lab.rows()] == [1, 2, 3, 4, 8, 12, 14]


def test_the_share_of_clipped_steps_is_over_all_steps_since_the_last_row(lab):
    lab.train("batch.max_grad_norm=1e-9", "logging.dense_steps=1", "logging.logging_steps=5", name="all")
    assert [row["clipped"] for row in lab.rows("all")] == [1.0] * 4
    lab.train("batch.max_grad_norm=null", name="none")
    assert {row["clipped"] for row in lab.rows("none")} == {0.0}


def test_evaluations_and_checkpoints_come_when_they_are_due(lab):
    lab.train("evaluation.eval_steps=5", "checkpoint.save_steps=4", "checkpoint.save_total_limit=null")
    assert [row["step"] for row in lab.rows(split="eval")] == [5, 10, 12]
    assert set(lab.steps_saved()) >= {4, 8, 12}


def test_without_evaluation_checkpoints_still_come(lab):
    lab.train("data.validation_ratio=0", "evaluation.eval_steps=null", "checkpoint.save_total_limit=null")
    assert lab.rows(split="eval") == []
    assert lab.steps_saved() == [2, 4, 6, 8, 10, 12]


def test_the_end_of_every_epoch_is_evaluated_at_the_step_that_passes_it(lab):
    from fractions import Fraction

    job = lab.build("evaluation.eval_strategy=epoch", "evaluation.eval_steps=null")
    for samples, batch in ((7, 3), (10, 3), (5, 8), (4, 4)):
        job.steps_per_epoch = Fraction(samples, batch)
        due = [step for step in range(1, 200) if job.evaluation_is_due(step)]
        assert due == [step for step in range(1, 200) if step * batch // samples > (step - 1) * batch // samples]


def test_a_run_of_one_update_may_have_a_warm_up_ratio(lab):
    lab.train("training.max_steps=1", "schedule.warmup_steps=null", "schedule.warmup_ratio=0.1")
    assert [row["step"] for row in lab.rows()] == [1]
