"""A run that ended with an error: the doctor says so first, and what the error was."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.doctor.records import losses, run, set_to
from tests.doctor.test_diagnose import told
from tests.doctor.test_own_modules import of_fit

import trainbook
from trainbook.doctor import diagnose
from trainbook.doctor.causes import remedy_of
from trainbook.errors import UserError
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord

BATCHES = [(x, x.sum(-1, keepdim=True)) for x in torch.randn(20, 4, 8, generator=torch.Generator().manual_seed(0))]


def failed(reason: str) -> RunRecord:
    return replace(of_fit(run()), events=[{"kind": "failure", "step": 29, "segment": 0, "reason": reason}])


def test_an_error_in_the_users_own_loss_is_told_first(tmp_path: Path):
    calls = []

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 15:
            raise ValueError("my own bug")
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    with pytest.raises(ValueError, match="my own bug"):
        trainbook.fit(
            torch.nn.Linear(8, 1), BATCHES, loss=loss, name="cut", runs_dir=tmp_path, quiet=True, max_steps=40
        )
    record = open_record(tmp_path / "cut")
    first = diagnose(record).findings[0]
    assert (first.cause, first.severity) == ("run-failed", "error")
    assert first.evidence == "after step 14: ValueError: my own bug"
    shown = told(record)
    assert "The run failed.  observed; run-failed" in shown and "run the same script again" in shown


def test_a_loss_that_gives_no_parameter_a_gradient_is_refused_in_plain_words(tmp_path: Path):
    def cut(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.tensor(torch.nn.functional.mse_loss(model(batch[0]), batch[1]).item(), requires_grad=True)

    with pytest.raises(UserError, match=r"must depend on the model's parameters, .* received a gradient"):
        trainbook.fit(torch.nn.Linear(8, 1), BATCHES, loss=cut, name="cut", runs_dir=tmp_path, quiet=True, max_steps=4)
    record = open_record(tmp_path / "cut")
    assert "before the first step was complete: The loss must depend" in diagnose(record).findings[0].evidence


def test_a_run_without_rows_is_not_said_to_have_no_problems(tmp_path: Path):
    empty = replace(of_fit(run()), train=[], evaluations=[], path=tmp_path)
    shown = told(empty)
    assert "no problems found" not in shown and "no training rows were logged" in shown


def test_a_message_of_several_lines_and_of_control_characters_is_one_plain_line():
    found = diagnose(failed("RuntimeError: \x1b[31mred\nand more" + " x" * 1000)).findings[0]
    assert "\\u001b[31mred and more" in found.evidence
    assert "\x1b" not in found.evidence and "\n" not in found.evidence and len(found.evidence) < 500


def test_a_failure_that_was_recorded_in_the_manifest_alone_is_told():
    facts = {"status": "failed", "status_detail": "OSError: No space left on device"}
    record = replace(of_fit(run()), facts=facts)
    assert diagnose(record).findings[0].evidence == "after step 200: OSError: No space left on device"


def test_a_failure_that_the_run_was_resumed_after_is_history():
    record = failed("ValueError: once")
    resumed = replace(record, events=[*record.events, {"kind": "resume", "step": 20, "segment": 1}])
    assert "run-failed" not in [each.cause for each in diagnose(resumed).findings]
    finished = replace(record, facts={**record.facts, "status": "finished"})
    assert "run-failed" not in [each.cause for each in diagnose(finished).findings]


def test_what_made_the_guard_give_up_comes_before_the_failure_that_follows_from_it():
    reason = "step 205: the loss rose from 0.3 at step 170 to 2.7. Tried: 6 rollbacks. Try learning_rate=0.001."
    diverged = run(each=losses(lambda step: 3.0 if step < 60 else 3.0 + step / 20))
    record = replace(diverged, events=[{"kind": "failure", "step": 200, "segment": 0, "reason": reason}])
    causes = [each.cause for each in diagnose(record).findings]
    assert causes[0] == "learning-rate-high" and "run-failed" in causes


@pytest.mark.parametrize("noticed", [10, 60])
def test_the_step_of_a_failure_is_told_once_and_with_one_full_stop(noticed: int):
    reason = f"step {noticed}: 10 updates in a row were rejected (the loss is NaN). Try a longer warm-up."
    event = {"kind": "failure", "step": 100, "segment": 0, "reason": reason}
    found = diagnose(replace(run(), events=[event])).findings
    (failure,) = (each for each in found if each.cause == "run-failed")
    assert failure.evidence.startswith(
        f"after step {noticed}: 10 updates in a row were rejected (the loss is NaN). Try"
    )
    assert failure.evidence.endswith("a longer warm-up")


def test_the_guard_and_the_doctor_advise_the_same_learning_rate():
    for advised in ("3e-05", "0.00021"):
        reason = f"step 205: the loss rose from 0.3 to 2.7. Tried: 6 rollbacks. Try learning_rate={advised}, a longer."
        diverged = run(each=losses(lambda step: 3.0 if step < 60 else 3.0 + step / 20))
        record = replace(diverged, events=[{"kind": "failure", "step": 200, "segment": 0, "reason": reason}])
        first = diagnose(record).findings[0]
        assert first.cause == "learning-rate-high" and first.override is not None
        assert float(first.override.partition("=")[2]) == float(advised)


def test_an_overflow_that_made_the_guard_give_up_comes_first_however_unsure_it_is():
    reason = (
        "step 10: 10 updates in a row were rejected (the last one: the gradient norm is infinite). Tried: 1 rollback."
    )
    begun = run("precision.compute=fp16", each=set_to(grad_norm=math.inf, loss_scale=2.0**24))
    skip = {"kind": "skip", "segment": 0, "cause": "not_finite", "reason": "the gradient norm is infinite"}
    events = [{**skip, "step": step} for step in range(1, 11)]
    events += [{"kind": "rollback", "step": 0, "segment": 1, "reason": reason}]
    events += [{"kind": "failure", "step": 10, "segment": 1, "reason": reason}]
    record = replace(begun, train=begun.train[:6], evaluations=[], events=events)
    causes = [each.cause for each in diagnose(record).findings if each.severity == "error"]
    assert causes[0] == "fp16-overflow" and causes[-1] == "run-failed"


def test_out_of_memory_is_told_once_with_its_own_remedy():
    causes = [each.cause for each in diagnose(failed("OutOfMemoryError: CUDA out of memory")).findings]
    assert "out-of-memory" in causes and "run-failed" not in causes
    shortage = replace(of_fit(run()), facts={"status": "failed", "status_detail": "CUDA out of memory at step 3"})
    assert "out-of-memory" in [each.cause for each in diagnose(shortage).findings]


def test_a_run_of_a_recipe_is_resumed_by_name():
    record = replace(run(), events=failed("ValueError: broken").events)
    first = diagnose(record).findings[0]
    assert first.cause == "run-failed" and "`trainbook resume made-up`" in remedy_of(first)
