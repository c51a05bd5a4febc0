"""A run that goes astray and is brought back: what is left out, what is restored, what is told, and that a killed run
does all of it again."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
import torch
from tests.conftest import Lab, PowerCut, slow, text_of

from trainbook.errors import Diverged
from trainbook.loop.guard_actions import GuardActions
from trainbook.loop.job import Job
from trainbook.tracking import Trackers

LONG = (
    *("batch.global_batch_size=8", "training.max_steps=70", "optimizer.learning_rate=2e-2", "logging.dense_steps=0"),
    *("guard.snapshot_steps=10", "guard.max_consecutive_skips=5", "evaluation.eval_steps=70", "data.max_seq_length=32"),
    "checkpoint.save_steps=20",
)
AROUND = ("time", "segment", "path", "seconds", "bytes")


@pytest.fixture(scope="module")
def long_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    torch.backends.mkldnn.enabled = False  # as in each test, which this comes before
    lab = Lab(tmp_path_factory.mktemp("healing"))
    lab.text.write_text(text_of(6000))
    lab.train(*LONG, name="clean")
    return lab


def told(lab: Lab, name: str, *kinds: str) -> list[dict]:
    wanted = kinds or ("skip", "quarantine", "rollback", "remedy", "oom")
    events = [event for event in lab.open(name).events() if event["kind"] in wanted]
    return [{key: value for key, value in event.items() if key not in AROUND} for event in events]


def breaking_at(lab: Lab, *steps: int, factor: float = 4.0, times: int = 1):
    """Before these steps the weights are multiplied: the model is broken, not a batch."""
    broken: dict[int, int] = {}

    def change(number, state, step):
        if number in steps and broken.get(number, 0) < times:
            broken[number] = broken.get(number, 0) + 1
            with torch.no_grad():
                for parameter in state.parameters:
                    parameter.mul_(factor)
        return step()

    return lab.around_step(change)


def test_a_healthy_run_is_the_same_with_the_guard_and_without(long_lab: Lab):
    long_lab.train(*LONG, "guard.enabled=false", name="off")
    assert told(long_lab, "clean") == []
    for split in ("train", "eval"):
        assert long_lab.rows("off", split) == long_lab.rows("clean", split)


def test_spoilt_samples_are_rejected_found_written_down_and_met_no_more(long_lab: Lab):
    long_lab.train(*LONG, name="spoilt", inject=["random-labels@50"])
    run = long_lab.open("spoilt")
    (spoilt,) = [event["ids"] for event in run.events() if event["kind"] == "inject"]
    skip, quarantine = told(long_lab, "spoilt")
    assert skip["step"] == 50 and skip["loss_deviation"] > 10 and math.isfinite(skip["loss"])
    assert set(quarantine["ids"]) == set(spoilt), "all of them, and no other"
    entries = [json.loads(line) for line in run.quarantine_file.read_text().splitlines()]
    assert [entry["id"] for entry in entries] == quarantine["ids"]
    assert all("text.txt:" in entry["source"] and entry["text"] and entry["step"] == 50 for entry in entries)
    assert long_lab.state("spoilt")["loop"]["kept_out"] == sorted(spoilt)
    assert "excluded from training" in run.report.read_text()


def test_a_skipped_batch_costs_one_step_and_nothing_else(long_lab: Lab):
    long_lab.train(*LONG, name="glitch", inject=["exploding-gradient@60"])
    assert [event["kind"] for event in told(long_lab, "glitch", "skip", "rollback")] == ["skip"]
    rows = long_lab.rows("glitch")
    assert rows[-1]["step"] == 71 and rows[-1]["applied_updates"] == 70 and rows[-1]["skipped_updates"] == 1


def test_what_was_rejected_is_said_before_the_row_of_a_later_step(long_lab: Lab, monkeypatch: pytest.MonkeyPatch):
    said: list[tuple[str, int]] = []
    log_event, log_metrics = Trackers.log_event, Trackers.log_metrics

    def hear_event(self: Trackers, kind: str, step: int | None = None, **fields: Any) -> None:
        said.append((kind, step or 0))
        log_event(self, kind, step, **fields)

    def hear_row(self: Trackers, step: int, split: Any, values: Any) -> None:
        said.append((split, step))
        log_metrics(self, step, split, values)

    monkeypatch.setattr(Trackers, "log_event", hear_event)
    monkeypatch.setattr(Trackers, "log_metrics", hear_row)
    long_lab.train(*LONG, "logging.logging_steps=10", name="order", inject=["exploding-gradient@58"])
    lines = [each for each in said if each[0] in ("skip", "quarantine", "train") and each[1] > 50]
    assert lines[:3] == [("skip", 58), ("quarantine", 58), ("train", 60)]


def test_a_broken_model_goes_back_to_before_it_broke(long_lab: Lab, monkeypatch: pytest.MonkeyPatch):
    act = GuardActions.act

    def slowly(self: GuardActions, *args: Any) -> bool:
        before = self.state.step
        found = act(self, *args)
        if self.state.step < before:
            time.sleep(1.0)  # more than the steps until the next row
        return found

    monkeypatch.setattr(GuardActions, "act", slowly)
    with breaking_at(long_lab, 48):
        long_lab.train(*LONG, name="broken")
    (rollback,) = told(long_lab, "broken", "rollback")
    assert rollback["step"] == 30 and rollback["noticed"] <= 48 + 3 * 5, "the copy of step 40 is too near the trouble"
    assert rollback["attempt"] == 1 and "from memory" in rollback["reason"]
    times = [row["step_seconds"] for row in long_lab.open("broken").metrics("train")]
    assert min(times) > 1e-6, "the way back is no part of a step, and no step takes less than no time"
    rows = long_lab.rows("broken")
    assert rows[-1]["applied_updates"] == 70
    assert abs(rows[-1]["loss"] - long_lab.rows("clean")[-1]["loss"]) < 0.3
    manifest = long_lab.open("broken").read_manifest()
    assert [segment["start_step"] for segment in manifest.segments] == [0, 30]
    assert manifest.status == "finished"


@pytest.mark.slow
def test_without_room_for_copies_the_way_back_is_from_a_checkpoint(long_lab: Lab, monkeypatch):
    from trainbook.loop import guard_actions

    monkeypatch.setattr(guard_actions, "available_host_memory", lambda: 1000)
    with breaking_at(long_lab, 48):
        long_lab.train(*LONG, name="no-room")
    (rollback,) = told(long_lab, "no-room", "rollback")
    assert rollback["step"] == 20 and "from a checkpoint" in rollback["reason"]


@pytest.mark.slow
def test_trouble_from_the_same_place_lowers_the_rate_and_warms_it_up_anew(long_lab: Lab):
    with breaking_at(long_lab, 48, times=2):
        long_lab.train(*LONG, "guard.rewarm_steps=4", "logging.logging_steps=1", name="twice")
    first, second = told(long_lab, "twice", "rollback")
    (remedy,) = told(long_lab, "twice", "remedy")
    assert (first["attempt"], second["attempt"]) == (1, 2) and remedy["factor"] == 0.5
    rows = {row["step"]: row for row in long_lab.rows("twice")}
    clean = {row["step"]: row for row in long_lab.rows("clean")}
    place = remedy["step"]
    factors = [rows[place + after]["rate_factor"] for after in range(1, 8)]
    assert factors == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5], rel=1e-6)
    assert rows[60]["learning_rate"] == pytest.approx(0.5 * clean[60]["learning_rate"])


@pytest.mark.slow
def test_without_a_remedy_the_second_time_is_the_end_and_the_verdict_says_why(long_lab: Lab):
    with breaking_at(long_lab, 48, times=99), pytest.raises(Diverged, match="updates in a row were rejected") as ended:
        long_lab.train(*LONG, "guard.remedy=none", name="given-up")
    assert "Tried: 1 rollback" in str(ended.value)
    assert "optimizer.learning_rate=0.001" in str(ended.value)
    assert long_lab.open("given-up").read_manifest().status == "failed"


def test_after_the_last_rollback_the_run_stops(long_lab: Lab):
    with breaking_at(long_lab, 48, times=99), pytest.raises(Diverged, match=r"3 rollbacks, learning rate × 0\.25"):
        long_lab.train(*LONG, "guard.max_rollbacks=3", name="exhausted")


@pytest.mark.parametrize("crash", [slow(51), 55, slow(58), slow(66)])
def test_a_killed_run_heals_again_in_the_same_way(long_lab: Lab, crash: int):
    faults = ["random-labels@50"]
    if "whole" not in {path.name for path in long_lab.runs.iterdir()}:
        long_lab.train(*LONG, name="whole", inject=faults)
    name = f"killed-{crash}"
    with long_lab.crashing_at(crash):
        long_lab.train(*LONG, name=name, inject=faults)
    long_lab.train(*LONG, name=name, inject=faults)
    assert told(long_lab, name) == told(long_lab, "whole")
    long_lab.must_be_equal(name, "whole")
    files = [long_lab.open(each).quarantine_file.read_text() for each in (name, "whole")]
    assert files[0] == files[1]


@pytest.mark.slow
def test_a_run_killed_right_after_going_back_goes_on_from_there(long_lab: Lab):
    attempts: list[int] = []

    def change(number, state, step):
        if number == 48 and not attempts:
            attempts.append(number)
            with torch.no_grad():
                for parameter in state.parameters:
                    parameter.mul_(4.0)
        if number == 32 and attempts and not any(each == 32 for each in attempts):
            attempts.append(32)
            raise PowerCut
        return step()

    with long_lab.around_step(change), pytest.raises(PowerCut):
        long_lab.train(*LONG, name="cut")
    (rollback,) = told(long_lab, "cut", "rollback")
    long_lab.train(*LONG, name="cut")
    assert told(long_lab, "cut", "rollback") == [rollback], "the resumed run did not begin within the trouble"
    assert long_lab.open("cut").events()[-1]["kind"] == "finish"
    resumed = [event["step"] for event in long_lab.open("cut").events() if event["kind"] == "resume"]
    assert resumed == [rollback["step"]]


def test_a_run_takes_over_the_quarantine_of_another(long_lab: Lab):
    if "spoilt" not in {path.name for path in long_lab.runs.iterdir()}:
        long_lab.train(*LONG, name="spoilt", inject=["random-labels@50"])
    kept_out = long_lab.state("spoilt")["loop"]["kept_out"]
    path = long_lab.open("spoilt").path
    long_lab.train(*LONG, f"data.quarantine={path}", name="careful", inject=["random-labels@50"])
    assert told(long_lab, "careful") == [], "the spoilt samples are never met"
    assert long_lab.state("careful")["loop"]["kept_out"] == kept_out


def test_quarantine_can_be_switched_off(long_lab: Lab):
    long_lab.train(*LONG, "guard.quarantine=false", name="careless", inject=["random-labels@50"])
    assert [event["kind"] for event in told(long_lab, "careless")] == ["skip"]
    assert not long_lab.open("careless").quarantine_file.exists()


# Memory


def test_a_step_without_enough_memory_is_tried_again_in_smaller_parts(lab: Lab):
    lab.train("batch.per_device_train_batch_size=1", "batch.global_batch_size=4", name="small")
    lab.train("batch.per_device_train_batch_size=4", "batch.global_batch_size=4", name="large")
    lab.train("batch.global_batch_size=4", inject=["out-of-memory@5"])
    (event,) = told(lab, "run", "oom")
    assert (event["step"], event["rows_before"], event["rows"]) == (5, 4, 2)
    assert "memory.gradient_checkpointing" in event["reason"]
    rows, small, large = lab.rows(), lab.rows("small"), lab.rows("large")
    assert [row["loss"] for row in rows[:4]] == [row["loss"] for row in large[:4]]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in small], abs=1e-5)
    assert rows[-1]["applied_updates"] == 12 and rows[-1]["step"] == 12 and rows[-1]["tokens"] == small[-1]["tokens"]


def test_a_resumed_run_remembers_how_much_there_is_memory_for(lab: Lab):
    lab.train("batch.global_batch_size=4", name="whole", inject=["out-of-memory@5"])
    with lab.crashing_at(10):
        lab.train("batch.global_batch_size=4", "checkpoint.save_steps=3", inject=["out-of-memory@5"])
    lab.train("batch.global_batch_size=4", "checkpoint.save_steps=3")
    assert [row["loss"] for row in lab.rows()] == [row["loss"] for row in lab.rows("whole")]
    assert lab.state()["loop"]["most_rows"] == 2 and len(told(lab, "run", "oom")) == 1


def test_a_resumed_run_that_needs_less_memory_tries_the_larger_parts_again(lab: Lab):
    """Else what the event advises could only make it slower."""
    with lab.crashing_at(10):
        lab.train("batch.global_batch_size=4", "checkpoint.save_steps=3", inject=["out-of-memory@5"])
    lab.train("batch.global_batch_size=4", "checkpoint.save_steps=3", "memory.gradient_checkpointing=full")
    assert lab.state()["loop"]["most_rows"] is None


def test_dropout_and_buffers_are_as_if_the_failed_attempt_had_never_been(lab: Lab):
    """A step that fails half-way has changed nothing: neither gradients nor averages of norms."""
    built = lab.build("batch.global_batch_size=4", "batch.per_device_train_batch_size=1")
    job: Job = built
    batch = next(job.feed(0, 1))
    from trainbook.loop.step import train_step

    real, calls = job.state.losses, []

    def fail_at_the_third(micro_batch):
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("no more")
        return real(micro_batch)

    job.state.losses = fail_at_the_third
    before = {name: value.clone() for name, value in job.state.task.state_dict().items()}
    with pytest.raises(torch.OutOfMemoryError):
        train_step(job.state, batch)
    assert all(parameter.grad is None for parameter in job.state.parameters)
    assert all(torch.equal(value, before[name]) for name, value in job.state.task.state_dict().items())
    assert job.state.step == 0 and job.state.judge.judged == 0


def test_with_one_sequence_at_a_time_there_is_nothing_left_to_halve(lab: Lab):
    from trainbook.errors import OutOfMemory

    def never(number, state, step):
        if number >= 3:
            state.losses = lambda micro_batch: (_ for _ in ()).throw(torch.OutOfMemoryError("no"))
        return step()

    with lab.around_step(never), pytest.raises(OutOfMemory, match="a batch of 1 sequence") as ended:
        lab.train("batch.global_batch_size=4")
    assert "memory.gradient_checkpointing" in str(ended.value) and lab.state()["loop"]["step"] == 2
    assert [event["rows"] for event in told(lab, "run", "oom")] == [2, 1]


def test_an_evaluation_without_enough_memory_is_made_in_smaller_parts(lab: Lab, monkeypatch):
    from trainbook.loop import build

    real = build.evaluate

    def evaluate(state, task, batches, record=None):
        batches = list(batches)
        if len(batches[0].ids) > 2:
            raise torch.OutOfMemoryError("no")
        return real(state, task, batches)

    lab.train(name="whole")
    monkeypatch.setattr(build, "evaluate", evaluate)
    lab.train()
    assert [event["rows"] for event in told(lab, "run", "oom")] == [2]
    losses = [[row["loss"] for row in lab.rows(name, "eval")] for name in ("run", "whole")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
