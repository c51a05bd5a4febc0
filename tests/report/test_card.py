"""The card is made from a run's files alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from trainbook.doctor import Diagnosis, Finding
from trainbook.knobs import load
from trainbook.report import facts as facts_module
from trainbook.report import make_card
from trainbook.report.card import LEVELS
from trainbook.runs import Manifest, RunFolder
from trainbook.runs.jsonl import JsonlWriter


class Written:
    """A run folder written by hand."""

    def __init__(self, path: Path) -> None:
        self.run = RunFolder.create(path, "run")
        self.manifest = Manifest("run", status="finished")
        self.manifest.write(self.run.manifest)

    def train(self, losses: dict[int, float], segment: int = 0, **more: Any) -> Written:
        with JsonlWriter(self.run.metrics_file) as writer:
            for step, loss in losses.items():
                row = {"step": step, "segment": segment, "split": "train", "loss": loss, "tokens": 100 * step}
                writer.append({**row, "tokens_per_second": 50.0, "step_seconds": 0.5, **more})
        return self

    def evaluate(self, rows: list[dict[str, Any]]) -> Written:
        with JsonlWriter(self.run.metrics_file) as writer:
            for row in rows:
                writer.append({"segment": 0, "split": "eval", **row})
        return self

    def event(self, **row: Any) -> Written:
        with JsonlWriter(self.run.events_file) as writer:
            writer.append({"segment": 0, **row})
        return self

    def status(self, status: Any, detail: str = "") -> Written:
        self.manifest.end_segment(status, detail)
        self.manifest.write(self.run.manifest)
        return self

    def lines(self) -> dict[str, str]:
        return dict(make_card(self.run).lines)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_the_card_has_the_numbers_of_the_run(written: Written):
    written.train({1: 5.0, 2: 4.0, 10: 3.0}).evaluate(
        [{"step": 10, "loss": 2.5, "perplexity": 12.18, "accuracy": 0.25, "best": True}]
    )
    lines = written.lines()
    assert lines["steps"] == "10 steps, 1,000 tokens, 5s"
    assert lines["speed"] == "200 tokens per second of training"  # 1,000 in 5 s
    assert lines["train"].endswith("5.0000 → 3.0000")
    assert lines["best"] == "loss 2.5000, perplexity 12.18, accuracy 25.0% at step 10"
    assert lines["guard"] == "no update was rejected"
    assert make_card(written.run).title == "run  finished"


def test_evaluations_that_take_longer_than_the_steps_are_told_with_how_to_spend_less(written: Written):
    written.train({1: 5.0, 2: 4.0, 10: 3.0}).evaluate([{"step": 5, "loss": 2.5, "seconds": 15.0}])
    lines = written.lines()
    assert lines["steps"] == "10 steps, 1,000 tokens, 5s of training, 15s of evaluation"
    assert lines["evaluation"].startswith("75% of the time was spent in evaluations: ")
    assert "evaluation.eval_steps" in lines["evaluation"]


def test_short_evaluations_are_not_worth_a_line(written: Written):
    written.train({1: 5.0, 2: 4.0, 10: 3.0}).evaluate([{"step": 5, "loss": 2.5, "seconds": 1.0}])
    lines = written.lines()
    assert lines["steps"] == "10 steps, 1,000 tokens, 5s" and "evaluation" not in lines


def test_findings_that_are_only_good_to_know_are_counted(written: Written, monkeypatch: pytest.MonkeyPatch):
    """`trainbook doctor` shows them: the card does not say that there is nothing."""
    info = Finding("guard-acted", "info", "rate-too-high", 0.4, "3 of 80 updates were rejected")
    short = Finding("still-improving", "info", "too-short", 0.5, "the loss was still falling")
    written.train({1: 5.0, 10: 3.0})
    for findings, expected in (
        ([], "no problems found ("),
        ([short], "no problems found ("),
        ([info], "no errors or warnings, 1 info (trainbook doctor shows it) ("),
        ([info, info, short], "no errors or warnings, 2 infos (trainbook doctor shows them) ("),
    ):
        monkeypatch.setattr(facts_module, "diagnose", lambda record, findings=findings: Diagnosis(findings))
        line = written.lines()["doctor"]
        assert line.startswith(expected) and ("still falling" in line) == (short in findings)


def test_a_spike_of_one_step_stays_in_the_curve(written: Written):
    losses = {step: 5.0 - step / 1000 for step in range(1, 2001)}
    losses[1234] = 9.0
    curve = written.train(losses).lines()["train"].split()[0]
    assert len(curve) == 48
    assert curve.count(LEVELS[-1]) == 1 and curve[1234 * 48 // 2001] == LEVELS[-1]


def test_what_is_not_a_number_is_shown_as_such(written: Written):
    losses = dict.fromkeys(range(1, 101), 4.0) | {60: math.nan, 80: math.inf, 100: math.nan}
    text = written.train(losses).lines()["train"]
    curve = text.split()[0]
    assert [place for place, mark in enumerate(curve) if mark == "!"] == [59 * 48 // 100, 79 * 48 // 100, 47]
    assert text.endswith("4.0000 → nan")


def test_the_best_is_the_one_by_the_chosen_metric(written: Written):
    written.train({1: 5.0}).evaluate(
        [
            {"step": 2, "loss": 3.0, "accuracy": 0.4, "best": True},
            {"step": 4, "loss": 2.0, "accuracy": 0.3, "best": False},
        ]
    )
    assert written.lines()["best"] == "loss 3.0000, accuracy 40.0% at step 2"


def test_evaluations_that_are_all_nan_do_not_break_the_card(written: Written):
    written.train({1: 5.0}).evaluate([{"step": 2, "loss": math.nan, "perplexity": math.nan, "best": False}])
    assert written.lines()["best"] == "none: no evaluation has a finite loss, so no best model was kept"


def test_rejected_updates_resumes_and_the_failure_are_told(written: Written):
    written.train({1: 5.0}, skipped_updates=3).event(step=1, kind="resume").event(
        step=1, kind="failure", reason="the disk is full | step 1\nfree some"
    )
    written.status("failed", "the disk is full")
    written.run.tokenizer.mkdir()
    lines = written.lines()
    assert lines["guard"].startswith("3 updates were rejected")
    assert lines["resumed"] == "1 time, from the newest complete checkpoint"
    card = make_card(written.run)
    assert card.title == "run  failed: the disk is full"
    assert card.next_commands[0][0] == f"trainbook resume {written.run.path}"
    assert "| failure | the disk is full \\| step 1 free some |" in card.as_markdown()


def test_a_finished_run_is_not_told_to_go_on(written: Written):
    commands = [command for command, _ in make_card(written.train({1: 5.0}).run).next_commands]
    assert not any("resume" in command for command in commands)
    assert f"trainbook board {written.run.path.parent}" in commands


@pytest.mark.parametrize(
    ("overrides", "is_offered"),
    [
        ((), True),
        (("model.qk_norm=true",), False),
        (("model.norm=rmsnorm",), False),
        (("model.type=bert",), False),
        (("model.type=bert", "model.norm_position=post"), True),
        (("model.type=tests.own:Model",), False),
        (("training.task=tests.own:Task",), False),
    ],
)
def test_export_is_offered_where_some_format_can_hold_the_model(written: Written, overrides, is_offered: bool):
    written.manifest.config = load(None, overrides).config.model_dump(mode="json")
    written.manifest.write(written.run.manifest)
    (written.run.checkpoints / "step-00000001").mkdir(parents=True)
    commands = [command for command, _ in make_card(written.run).next_commands]
    assert any(command.startswith("trainbook export") for command in commands) == is_offered


@pytest.mark.parametrize(
    ("overrides", "offered"),
    [
        ((), ["generate"]),
        (("model.type=t5", "training.task=seq2seq"), ["generate", "predict"]),
        (("model.type=bert", "training.task=classify"), ["predict"]),
    ],
)
def test_what_a_model_can_be_used_for_is_offered(written: Written, overrides, offered: list[str]):
    written.manifest.config = load(None, overrides).config.model_dump(mode="json")
    written.manifest.write(written.run.manifest)
    assert uses_of(written) == []  # without a checkpoint there are no weights
    (written.run.checkpoints / "step-00000001").mkdir(parents=True)
    assert uses_of(written) == offered


def uses_of(written: Written) -> list[str]:
    verbs = [command.split()[1] for command, _ in make_card(written.run).next_commands]
    return [verb for verb in verbs if verb in ("generate", "predict")]


def test_steps_that_a_resume_gave_up_are_not_shown(written: Written):
    written.train({1: 5.0, 2: 4.0, 3: 9.0}).event(step=2, segment=1, kind="resume")
    written.train({3: 3.5}, segment=1)
    assert written.lines()["train"].endswith("5.0000 → 3.5000")
    assert written.lines()["steps"] == "3 steps, 300 tokens, 2s"


def test_a_run_without_a_single_row_has_a_card(written: Written):
    card = make_card(written.status("interrupted", "Ctrl-C").run)
    assert card.title == "run  interrupted: Ctrl-C" and "folder" in dict(card.lines)
    assert card.as_text() and card.as_markdown()


def test_long_runs_are_told_in_hours(written: Written):
    lines = written.train({7200: 1.0}).lines()
    assert lines["steps"] == "7,200 steps, 720,000 tokens, 1h 00m"


def test_what_was_left_out_of_training_is_told(written: Written):
    assert "left out" not in written.train({1: 5.0}).lines()
    told = ["by data.repetition_filter: 12 of 3,400 documents", "by data.quarantine: 2 documents that runs/first names"]
    written.event(step=0, kind="start", left_out=told)
    lines = written.lines()
    assert lines["left out"] == "; ".join(told) and "quarantine" not in lines


def test_samples_that_the_run_kept_out_are_counted(written: Written):
    written.train({1: 5.0}).event(step=0, kind="start", left_out=[])
    entry = {"id": 3, "source": "a.txt:4", "text": "a", "step": 1, "reason": "", "loss": 9.0, "data": "abc"}
    for count, said in ((1, "1 sample was"), (2, "2 samples were")):
        with JsonlWriter(written.run.quarantine_file) as writer:
            writer.append(entry)
        lines = written.lines()
        assert lines["quarantine"] == f"{said} excluded from training, see quarantine.jsonl", count
        assert "left out" not in lines


def test_a_rank_that_the_others_wait_for_is_named(written: Written):
    written.train({1: 5.0}, rank_seconds={"0": 0.010, "1": 0.011, "2": 0.030})
    expected = "rank 2: 30 ms of compute per step, against a median of 11 ms; the others wait for it"
    assert written.lines()["slowest"] == expected


def test_ranks_that_are_about_equal_are_not(written: Written):
    assert "slowest" not in written.train({1: 5.0}, rank_seconds={"0": 0.010, "1": 0.013}).lines()


def test_the_card_at_the_end_of_a_run_is_its_report_and_is_made_once(
    lab: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    real, diagnosed = facts_module.diagnose, []
    monkeypatch.setattr(facts_module, "diagnose", lambda record: diagnosed.append(record) or real(record))
    run = lab.train(quiet=False).run
    assert len(diagnosed) == 1
    shown = capsys.readouterr().out
    card = make_card(run)
    assert card.title in shown and run.report.read_text() == card.as_markdown()
    lab.train(quiet=False)
    again = capsys.readouterr().out
    assert "is already finished" in again and card.title in again


def test_steps_and_evaluations_that_were_rolled_back_are_told(written: Written):
    written.train(dict.fromkeys(range(1, 9), 2.0)).evaluate([{"step": 6, "loss": 2.0}])
    written.event(step=5, kind="checkpoint", segment=1)
    written.event(step=3, kind="rollback", segment=1, noticed=8).train({4: 2.0}, segment=1)
    lines = written.lines()
    assert lines["taken back"] == "5 steps and 1 evaluation, which the curves and numbers leave out"
    assert lines["steps"].startswith("5 steps, ")  # where it was saved last, after the last row


def test_a_rejected_update_counts_before_and_after_its_row(written: Written):
    written.train({1: 2.0}, skipped_updates=0).event(step=1, kind="skip", total=1)
    assert written.lines()["guard"].startswith("1 update was rejected")
    written.train({2: 2.0}, skipped_updates=3)
    assert written.lines()["guard"].startswith("3 updates were rejected")


def test_steps_whose_update_was_rejected_are_told_apart_from_updates(written: Written):
    written.train({5: 2.0}, applied_updates=5)
    assert written.lines()["steps"].startswith("5 steps, ")
    written.train({8: 2.0}, applied_updates=6)
    assert written.lines()["steps"].startswith("8 steps with 6 updates, ")


def test_metrics_that_are_missing_are_told_in_place_of_a_verdict(written: Written):
    written.run.metrics_file.unlink(missing_ok=True)
    lines = written.lines()
    assert lines["missing"].endswith("what this run logged is lost, and it cannot be judged")
    assert "doctor" not in lines
