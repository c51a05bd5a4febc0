"""The doctor beside a run that goes on: findings in its events, once, and never in its way."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.doctor.records import run, set_to

from trainbook.doctor import diagnose
from trainbook.doctor.diagnose import Diagnosis
from trainbook.doctor.view import View
from trainbook.finding import Finding
from trainbook.loop import live_doctor
from trainbook.loop.live_doctor import MOST_ROWS, NEWEST, LiveDoctor

HIGH = "optimizer.learning_rate=0.9"


def test_a_finding_is_written_when_it_is_seen_twice_and_shown_in_a_line(lab: Any):
    lab.train(HIGH, name="hot")
    found = lab.events("finding", "hot")
    assert found and found[0]["step"] == 12, "at the second evaluation"
    first = next(event for event in found if event["cause_id"] == "learning-rate-high")
    assert first["severity"] == "error"
    assert first["override"] == "optimizer.learning_rate=0.001" and 0 < first["confidence"] < 1
    assert first["reason"].startswith("error: The learning rate is too high.") and "Try" in first["reason"]
    assert len({event["cause_id"] for event in found}) == len(found)


def test_the_same_findings_are_read_from_the_folder_afterwards(lab: Any):
    from trainbook.runs.record import open_record

    lab.train(HIGH, name="hot")
    spoken = {each.cause for each in diagnose(open_record(lab.runs / "hot")).findings if each.severity != "info"}
    assert {event["cause_id"] for event in lab.events("finding", "hot")} >= spoken


def test_a_resumed_run_does_not_say_it_again(lab: Any):
    lab.train(HIGH, name="hot")
    before = lab.events("finding", "hot")
    lab.train(HIGH, "training.max_steps=18", name="hot", accept_changes=True)
    keys = [(event["severity"], event["cause_id"]) for event in lab.events("finding", "hot")]
    assert len(keys) == len(set(keys)) >= len(before)


def test_a_doctor_who_fails_stops_nothing_and_says_so_once(lab: Any, monkeypatch: pytest.MonkeyPatch):
    def fail(record: object) -> None:
        raise RuntimeError("he stumbled")

    monkeypatch.setattr(live_doctor, "diagnose", fail)
    lab.train(name="calm")
    assert lab.open("calm").read_manifest().status == "finished"
    told = [event for event in lab.events("notice", "calm") if "he stumbled" in event["reason"]]
    assert len(told) == 1


def test_it_knows_the_faults_that_were_injected(lab: Any, monkeypatch: pytest.MonkeyPatch):
    """So that it names no setting as the remedy of what a fault did, as the card does not either."""
    known: list[list[str]] = []

    def look(record: Any) -> Diagnosis:
        known.append(record.facts["injected_faults"])
        return Diagnosis([])

    monkeypatch.setattr(live_doctor, "diagnose", look)
    lab.train(name="calm")
    lab.train(name="faulty", inject=["nan-gradient@5"])
    assert known[0] == [] and known[-1] == ["nan-gradient@5"]


def test_what_is_known_before_the_first_step_is_in_the_start(lab: Any):
    lab.train(name="calm")
    (start,) = lab.events("start", "calm")
    assert start["uniform_loss"] == pytest.approx(5.549, abs=1e-3) and 1 < start["prior_loss"] < 4
    assert start["num_parameters"] == start["num_trained"] and start["untrained_layers"] == []
    assert 0 <= start["validation_overlap"] <= 1 and "facts_missing" not in start


def test_the_card_has_the_verdict_and_the_change_as_a_command(lab: Any):
    from trainbook.report.card import make_card

    lab.train(HIGH, name="hot")
    card = make_card(lab.open("hot"))
    assert dict(card.lines)["doctor"].startswith("error, ")
    assert card.next_commands[0][0].endswith("config.yaml optimizer.learning_rate=0.001")


def doctor_on_call(**options: Any) -> tuple[LiveDoctor, list[dict[str, Any]]]:
    record = run(**options)
    assert record.config is not None
    events = [{"kind": "start", "step": 0, **record.facts}, *record.events]
    doctor = LiveDoctor(record.name, record.config, record.train, events)
    for row in record.evaluations:
        doctor.note("eval", row)
    said: list[dict[str, Any]] = []
    doctor.report_new(200, lambda kind, step=None, **fields: said.append({"kind": kind, "step": step, **fields}))
    return doctor, said


def looks(*seen: list[Finding], total: int = 1000, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str, str]]:
    """What is said while looks at steps 10, 20, ... find these."""
    record = run()
    assert record.config is not None
    doctor = LiveDoctor(record.name, record.config, [], [{"kind": "start", "step": 0, "total_updates": total}])
    said: list[tuple[str, int, str, str]] = []

    def log(kind: str, step: int | None = None, **fields: Any) -> None:
        assert step is not None and fields["reason"]
        said.append((kind, step, fields["cause_id"], fields["severity"]))

    for at, found in enumerate(seen, 1):
        monkeypatch.setattr(live_doctor, "diagnose", lambda record, found=found: Diagnosis(found))
        doctor.report_new(10 * at, log)
    return said


HOT = Finding("divergence", "error", "learning-rate-high", 0.7, "the loss is 3")
WARM = replace(HOT, severity="warning")
COOL = replace(HOT, severity="info")
LOST = Finding("not-finite", "error", "non-finite", 0.9, "the loss was NaN")


def test_what_only_one_look_finds_is_not_said(monkeypatch: pytest.MonkeyPatch):
    assert looks([HOT], [], [HOT], [], monkeypatch=monkeypatch) == []
    assert looks([HOT], [HOT], [HOT], monkeypatch=monkeypatch) == [("finding", 20, "learning-rate-high", "error")]


def test_of_two_looks_the_milder_one_is_said_first(monkeypatch: pytest.MonkeyPatch):
    said = looks([WARM], [HOT], [HOT], [WARM], monkeypatch=monkeypatch)
    assert [each[1:] for each in said] == [(20, "learning-rate-high", "warning"), (30, "learning-rate-high", "error")]


def test_what_two_looks_no_longer_find_is_withdrawn_and_may_come_back(monkeypatch: pytest.MonkeyPatch):
    said = looks([HOT], [HOT], [], [HOT], [COOL], [], [HOT], [HOT], monkeypatch=monkeypatch)
    assert [each[:2] for each in said] == [("finding", 20), ("withdrawn", 60), ("finding", 80)]


def test_nan_is_said_at_once(monkeypatch: pytest.MonkeyPatch):
    assert looks([LOST], monkeypatch=monkeypatch) == [("finding", 10, "non-finite", "error")]


def test_the_last_look_agrees_with_the_card(monkeypatch: pytest.MonkeyPatch):
    said = looks([HOT], [HOT], [LOST, replace(WARM, cause="overfitting")], total=30, monkeypatch=monkeypatch)
    assert [each[:3] for each in said[1:]] == [
        ("finding", 30, "non-finite"),
        ("finding", 30, "overfitting"),
        ("withdrawn", 30, "learning-rate-high"),
    ]


def test_what_a_likelier_cause_explains_is_not_withdrawn(monkeypatch: pytest.MonkeyPatch):
    explained = replace(COOL, explained_by="targets-not-shifted")
    said = looks([HOT], [HOT], [explained], [explained], monkeypatch=monkeypatch)
    assert [each[0] for each in said] == ["finding"]


def test_a_resumed_run_knows_what_was_withdrawn():
    record = run()
    assert record.config is not None
    told = {"kind": "finding", "step": 20, "cause_id": "learning-rate-high", "severity": "error"}
    events = [told, {**told, "kind": "withdrawn", "step": 40}]
    assert set(LiveDoctor(record.name, record.config, [], events[:1]).told) == {"learning-rate-high"}
    assert not LiveDoctor(record.name, record.config, [], events).told


def test_of_a_healthy_run_nothing_is_said():
    assert doctor_on_call()[1] == []


def test_what_is_said_can_be_written_as_json():
    said = doctor_on_call(each=set_to(update_ratio=0.3))[1]
    assert [event["rule"] for event in said] == ["update-size"]
    assert json.loads(json.dumps(said)) == said


def test_what_follows_from_a_likelier_cause_is_left_to_the_card():
    ill = set_to(update_ratio=0.05, target_match={"0": 1.0, "1": 0.1, "2": 0.1})
    everything = {each.cause: each for each in diagnose(run(each=ill)).findings}
    assert everything["learning-rate-high"].explained_by == "targets-not-shifted"
    assert [event["cause_id"] for event in doctor_on_call(each=ill)[1]] == ["targets-not-shifted"]


def test_what_came_after_the_step_that_a_run_goes_back_to_is_forgotten():
    doctor, _ = doctor_on_call()
    doctor.go_back(100)
    assert max(row["step"] for rows in doctor.rows.values() for row in rows) == 100


def test_of_a_very_long_run_some_rows_are_kept_of_its_beginning_and_its_end():
    doctor, _ = doctor_on_call()
    for step in range(201, 201 + 3 * MOST_ROWS):
        doctor.note("train", {"step": step, "loss": 1.0})
    kept = [row["step"] for row in doctor.rows["train"]]
    assert len(kept) <= MOST_ROWS and kept[0] == 1 and kept[-1] == 200 + 3 * MOST_ROWS and kept == sorted(kept)


def test_what_is_kept_of_a_very_long_run_is_spread_over_all_of_it():
    record = doctor_on_call()[0]._record()
    doctor = LiveDoctor(record.name, record.config)  # pyright: ignore[reportArgumentType]
    for step in range(50 * MOST_ROWS):
        doctor.note("train", {"step": step, "loss": 1.0})
    kept = [row["step"] for row in doctor.rows["train"]]
    assert kept[-NEWEST:] == list(range(50 * MOST_ROWS))[-NEWEST:]
    assert MOST_ROWS / 4 < len(kept) <= MOST_ROWS
    assert {later - earlier for earlier, later in pairwise(kept[:-NEWEST])} == {64}, "the same everywhere"


def test_of_several_processes_the_batch_is_the_one_of_all():
    record = doctor_on_call()[0]._record()
    assert View(record).world == 1
    several = LiveDoctor(record.name, record.config, world=8)  # pyright: ignore[reportArgumentType]
    assert View(several._record()).world == 8
