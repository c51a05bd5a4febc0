"""A NaN among finite losses: whose fault it is, and whose it cannot be."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.doctor.test_fit_runs import causes, fitted, learned, skips

from trainbook.doctor import diagnose
from trainbook.doctor.causes import CAUSES, remedy_of
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord

NAN = math.nan


def no_rate_is_advised(record: RunRecord) -> bool:
    found = diagnose(record).findings
    return not any("learning" in remedy_of(each).lower() or "lr=" in str(each.override) for each in found) and not any(
        "learning_rate" in str(each.override) for each in found
    )


def guarded(last: int) -> RunRecord:
    """Half of all batches have a NaN loss, and so by chance the last rows; the guard lets the others pass."""
    lost = [step for step in range(3, last + 1) if step % 2 or (step > last - 30 and step % 5 == 0)]
    record = fitted(loss=lambda step: NAN if step in lost else learned(step))
    rows = [{**row, "applied_updates": row["step"] - sum(s <= row["step"] for s in lost)} for row in record.train]
    rows = [row for row in rows if row["step"] <= last]
    judged = [row for row in record.evaluations if row["step"] <= last]
    return replace(record, train=rows, evaluations=judged, events=skips(*lost), facts={"total_updates": 200})


@pytest.mark.parametrize("last", [60, 200])
def test_batches_with_a_nan_loss_are_a_matter_of_the_data_also_while_the_newest_rows_are_such(last: int):
    record = guarded(last)
    assert all(not math.isfinite(row["loss"]) for row in record.train[-5:])
    assert causes(record)[0] == "data-not-finite"
    assert no_rate_is_advised(record)


def test_a_guarded_run_is_not_blamed_before_anything_is_known_after_its_first_nan():
    record = fitted(loss=lambda step: NAN if step == 120 else learned(step))
    rows = [row for row in record.train if row["step"] <= 120]
    record = replace(record, train=rows, events=skips(120), facts={"total_updates": 200})
    assert not {"non-finite", "learning-rate-high"} & set(causes(record))


def test_a_nan_gradient_among_finite_losses_is_not_the_learning_rate():
    record = replace(fitted(loss=learned, skipped_updates=1), events=skips(150, loss=0.5))
    first = diagnose(record).findings[0]
    assert first.cause == "non-finite" and first.override is None
    assert "losses were finite before and after" in first.evidence
    assert no_rate_is_advised(record)


def log(folder: Path, *lost: int, until: int = 400) -> Path:
    """As Lightning writes it, with the guard's events beside it."""
    lines = [f"{step // 40},{step},{NAN if step in lost else learned(step // 2)}" for step in range(4, until, 5)]
    (folder / "metrics.csv").write_text("\n".join(["epoch,step,train_loss", *lines]) + "\n")
    (folder / "hparams.yaml").write_text("lr: 0.005\n")
    return folder


def test_another_trainers_log_with_a_nan_in_it_names_the_data(tmp_path: Path):
    record = open_record(log(tmp_path, 84))
    assert causes(record)[0] == "data-not-finite" and no_rate_is_advised(record)
    assert "in 1 logged row, first at step 84" in diagnose(record).findings[0].evidence
    lost = open_record(log(tmp_path, *range(84, 400)))
    assert causes(lost)[0] == "non-finite" and not no_rate_is_advised(lost)


def test_what_the_guard_wrote_beside_another_trainers_log_is_evidence(tmp_path: Path):
    event = {"kind": "skip", "reason": "the loss is NaN", "cause": "not_finite", "loss": "NaN", "grad_norm": "NaN"}
    steps = (17, 51, 82, 112, 9000)  # the last one is of another run
    lines = [json.dumps({**event, "step": step + 3, "global_step": step}) + "\n" for step in steps]
    (log(tmp_path) / "guard_events.jsonl").write_text("".join(lines))
    for what in (tmp_path, tmp_path / "metrics.csv"):
        record = open_record(what)
        assert [each["step"] for each in record.events if each["kind"] == "skip"] == [17, 51, 82, 112]
        first = diagnose(record).findings[0]
        assert first.cause == "data-not-finite" and first.evidence.startswith("the loss of 4 batches was NaN")


def test_validation_losses_that_are_all_nan_are_told_and_break_no_rule():
    record = fitted(loss=lambda step: 1.0, validation=lambda step: NAN)
    diagnosis = diagnose(record)
    assert not [needs for needs in diagnosis.not_judged.values() if needs[0].startswith("failed")]
    first = diagnosis.findings[0]
    assert first.cause == "data-not-finite" and "validation data" in remedy_of(first)
    assert "NaN or infinite in every evaluation" in first.evidence and "no best model" in first.evidence


def rolled_back(*, trial: bool = False) -> RunRecord:
    """120 healthy steps, then NaN for good: the guard goes back to steps 100, 50 and 0, and each state is NaN at once.
    With `trial`, it tested the state of step 100 and stopped there."""
    events: list[dict] = []
    last = 130
    for segment, (target, noticed) in enumerate([(120, 130), (100, 110), (50, 60), (0, 10)][: 1 if trial else 4]):
        if segment:
            events.append({"kind": "rollback", "step": target, "segment": segment, "noticed": last})
        events += [{**each, "segment": segment} for each in skips(*range(target + 1, target + 11))]
        last = noticed
    if trial:
        events.append({"kind": "trial", "step": 130, "worse": False, "lost": "loss function", "compared": 100})
    record = fitted(loss=lambda step: learned(step) if trial and step <= 120 else NAN)
    rows, judged = ([row for row in each if row["step"] <= last] for each in (record.train, record.evaluations))
    kept = judged if trial else []
    return replace(record, train=rows, evaluations=kept, events=events, facts={"total_updates": 200})


def test_the_first_nan_is_that_of_the_run_and_not_of_what_rollbacks_left():
    first = diagnose(rolled_back()).findings[0]
    assert first.evidence.startswith("the loss or its gradient was NaN or infinite 40 times, first at step 121, since")
    assert "before any update" not in first.evidence and "initial weights" not in first.evidence


@pytest.mark.parametrize("trial", [False, True])
def test_batches_that_are_nan_where_they_were_finite_name_the_loss_function(trial: bool):
    first, *others = diagnose(rolled_back(trial=trial)).findings
    assert first.cause == "loss-not-finite" and "weights of step 100" in first.evidence and first.override is None
    assert all(each.explained_by == first.cause for each in others if each.rule == "guard-acted")
    assert "data-not-finite" not in {each.cause for each in others}


def test_initial_weights_are_named_only_before_any_update():
    record = fitted(loss=lambda step: NAN)
    first = diagnose(record).findings[0]
    assert first.cause == "data-not-finite" and "before any update" in first.evidence
    assert "initial weights" in first.evidence and "initial weights" not in CAUSES[first.cause].sentence
