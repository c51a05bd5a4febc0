"""A run in which updates are rejected: by the guard, or by the loss scale of fp16."""

from __future__ import annotations

import math

import pytest

from trainbook.errors import Diverged


def applied_rates(rows):
    """The rate of each applied update, in order."""
    return [
        row["learning_rate"]
        for before, row in zip([{"applied_updates": 0}, *rows], rows, strict=False)
        if row["applied_updates"] > before["applied_updates"]
    ]


def test_the_run_makes_up_for_rejected_updates_and_keeps_its_schedule(lab):
    lab.train(name="clean")
    with lab.poisoned_at(1, 2, 7, 12, 15):
        result = lab.train()
    assert result.ended == "finished"
    rows = lab.rows()
    assert rows[-1]["step"] == 17 and rows[-1]["applied_updates"] == 12 and rows[-1]["skipped_updates"] == 5
    assert applied_rates(rows) == [row["learning_rate"] for row in lab.rows("clean")]
    assert math.isnan(rows[6]["loss"]) and math.isnan(rows[6]["grad_norm"]), "NaN is shown as NaN"
    assert all(math.isfinite(row["loss"]) for row in rows if row["step"] not in (1, 2, 7, 12, 15))
    assert [event["step"] for event in lab.events("skip")] == [1, 2, 7, 12, 15]


def test_the_last_update_of_an_epoch_that_was_rejected_is_made_up_for(lab):
    overrides = ("training.num_train_epochs=1", "batch.global_batch_size=24", "schedule.warmup_steps=1")
    built = lab.build(*overrides)
    total = built.total_updates
    with lab.poisoned_at(total):
        lab.train(*overrides)
    assert lab.rows()[-1]["applied_updates"] == total and lab.rows()[-1]["step"] == total + 1


def test_too_many_rejected_updates_in_a_row_end_the_run(lab):
    with lab.poisoned_at(*range(4, 100)), pytest.raises(Diverged, match="step 8: 5 updates in a row") as ended:
        lab.train("guard.max_consecutive_skips=5", "guard.max_rollbacks=0", "checkpoint.save_steps=2")
    assert ended.value.exit_code == 1
    manifest = lab.open().read_manifest()
    assert manifest.status == "failed" and "Tried: nothing" in manifest.status_detail
    assert "failure" in lab.open().report.read_text()


def test_bad_batches_in_a_row_are_skipped_while_the_model_is_fine(lab):
    lab.train("training.max_steps=20", name="clean")
    with lab.poisoned_at(*range(15, 38)):
        lab.train("training.max_steps=20", "guard.max_consecutive_skips=5")
    assert lab.events("rollback") == lab.events("remedy") == []
    assert len(lab.events("skip")) == 23 and lab.rows()[-1]["applied_updates"] == 20
    assert [row["loss"] for row in lab.rows()[:14]] == [row["loss"] for row in lab.rows("clean")[:14]]
    trials = lab.events("trial")
    assert [event["step"] for event in trials] == [19, 25], "told once, and again when the row is twice as long"
    assert "data from before it gives finite values, so it is not the model" in trials[0]["reason"]


@pytest.mark.slow
def test_bad_batches_without_end_stop_the_run_and_the_data_is_named(lab):
    with lab.poisoned_at(*range(15, 200)), pytest.raises(Diverged, match="training data is broken from step 15") as end:
        lab.train("training.max_steps=20", "guard.max_consecutive_skips=2")
    assert "Check your data" in str(end.value) and "learning_rate" not in str(end.value)
    assert lab.rows()[-1]["applied_updates"] == 14


def test_a_learning_rate_far_too_high_is_answered_with_the_usual_one(lab):
    with lab.poisoned_at(*range(4, 100)), pytest.raises(Diverged, match=r"Try optimizer\.learning_rate=0\.001,"):
        lab.train("optimizer.learning_rate=1", "guard.max_consecutive_skips=5", "guard.max_rollbacks=0")
    with lab.poisoned_at(*range(4, 100)), pytest.raises(Diverged, match=r"Try optimizer\.learning_rate=0\.0001,"):
        lab.train("optimizer.learning_rate=1e-3", "guard.max_consecutive_skips=5", "guard.max_rollbacks=0", name="low")


def test_a_skipped_update_says_for_programs_too_why(lab):
    with lab.poisoned_at(7):
        lab.train()
    (skip,) = lab.events("skip")
    assert skip["cause"] == "not_finite"


def test_rejected_updates_with_applied_ones_between_them_do_not_end_the_run(lab):
    with lab.poisoned_at(2, 3, 5, 6, 8, 9):
        lab.train("guard.max_consecutive_skips=3")
    assert lab.rows()[-1]["skipped_updates"] == 6


def test_without_the_guard_nan_is_applied(lab):
    with lab.poisoned_at(3):
        lab.train("guard.enabled=false")
    assert math.isnan(lab.rows()[-1]["loss"]) and lab.rows()[-1]["step"] == 12


def test_early_overflows_of_fp16_do_not_burn_the_warm_up(lab):
    overrides = ("fp16=true", "schedule.warmup_steps=4")
    lab.train(*overrides, "precision.initial_scale_power=8", name="clean")
    assert lab.rows("clean")[-1]["skipped_updates"] == 0
    lab.train(*overrides, "precision.initial_scale_power=24")
    rows = lab.rows()
    skipped = rows[-1]["skipped_updates"]
    assert skipped >= 3 and rows[-1]["step"] == 12 + skipped
    assert not any(math.isfinite(row["grad_norm"]) for row in rows[:3]), "the first ones, in the warm-up"
    assert applied_rates(rows) == [row["learning_rate"] for row in lab.rows("clean")]
    assert rows[-1]["loss_scale"] == 2.0 ** (24 - skipped)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.3, "and it learns"


def test_without_the_guard_an_fp16_run_that_never_has_a_finite_update_ends(lab):
    with lab.poisoned_at(*range(4, 200)), pytest.raises(Diverged, match="updates in a row were not finite"):
        lab.train("fp16=true", "guard.enabled=false", "precision.initial_scale_power=8")
    assert lab.rows()[-1]["applied_updates"] == 3


def test_without_the_guard_some_fp16_updates_that_are_not_finite_are_made_up_for(lab):
    with lab.poisoned_at(*range(4, 24)):
        lab.train("fp16=true", "guard.enabled=false", "precision.initial_scale_power=8")
    assert lab.rows()[-1]["applied_updates"] == 12
