"""Workers as processes of their own, with objectives that take no time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.study.tune.conftest import Asks, worker_with

from trainbook.errors import Interrupted, ResumeError, RunError, RunFolderError
from trainbook.knobs import load
from trainbook.study.tune.conclusion import finish
from trainbook.study.tune.ledger import opened
from trainbook.study.tune.planning import candidates
from trainbook.study.tune.run import LEDGER, SAME_FAILURES, Study, words_before
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Trial
from trainbook.study.tune.workers import Workers
from trainbook.study.workers import devices, environment

pytestmark = pytest.mark.usefixtures("objectives_on_path", "forked_workers")


def study(question: StudyQuestion, tmp_path: Path, objective: str) -> Study:
    command = worker_with(objective)
    made = Study(question, tmp_path / "runs" / "s", command=command)
    made.prepare()
    return made


def notes(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "notes.txt").read_text().splitlines()]


def test_a_worker_that_is_killed_loses_no_trial_and_doubles_none(tmp_path: Path, ask: Asks) -> None:
    said: list[str] = []
    question = ask(budget=24, seeds=1, workers=4)
    made = study(question, tmp_path, "deadly")
    made.say = said.append
    trials = made.run()
    assert [each.number for each in trials] == list(range(28)), (
        "24 trials, and a repetition of the best three and the base"
    )
    assert {each.state for each in trials} == {"done", "infeasible"}
    rates = Counter(each.values["optimizer.learning_rate"] for each in trials if each.kind == "search")
    assert set(rates.values()) == {1}
    begun = Counter(number for what, number, _ in notes(made.folder) if what == "begun")
    assert begun == {str(number): 2 if number == 3 else 1 for number in range(28)}
    begun_by = {worker for what, number, worker in notes(made.folder) if (what, number) == ("begun", "3")}
    assert len(begun_by) == 2, "the dead one, and who took it over"
    assert "SIGKILL" in said[0]
    facts = finish(question, _plan(made), trials, made.folder)
    assert facts["counts"] == {
        "done": sum(each.state == "done" for each in trials),
        "pruned": 0,
        "infeasible": sum(each.state == "infeasible" for each in trials),
        "failed": 0,
        "dropped": 0,
    }
    assert 0 < facts["infeasible_share"] < 0.5
    assert abs(facts["best"]["values"]["optimizer.learning_rate"] / 1e-3 - 1) < 0.5


def _plan(made: Study) -> dict:
    with opened(made.url, made.name) as ledger:
        plan = ledger.plan()
    assert plan is not None
    return plan


def test_an_interrupted_study_gives_its_trial_back_and_goes_on(tmp_path: Path, ask: Asks) -> None:
    question = ask(budget=4, seeds=0)
    made = study(question, tmp_path, "patient")
    thread = interrupted_by(made)
    with pytest.raises(Interrupted, match="Ctrl-C: 0 trials have ended; the work in progress is saved"):
        made.run()
    thread.join()
    again = study(question, tmp_path, "patient")
    trials = again.run()
    assert len(trials) == 4 and {each.state for each in trials} <= {"done", "infeasible"}
    assert trials[0].attempts == 1, "an interruption is no failed attempt"


def interrupted_by(made: Study, number: signal.Signals = signal.SIGINT) -> threading.Thread:
    """As soon as a trial has begun."""

    def interrupt() -> None:
        while not (made.folder / "notes.txt").is_file():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_a_worker_that_is_killed_because_somebody_stops_the_study_at_once_is_no_failed_attempt(
    tmp_path: Path, ask: Asks
) -> None:
    made = study(ask(budget=4, seeds=0), tmp_path, "stubborn")
    made.say = lambda line: os.kill(os.getpid(), signal.SIGINT)  # again, as soon as the first one is answered
    thread = interrupted_by(made)
    with pytest.raises(
        Interrupted, match="Ctrl-C: 0 trials have ended; the work in progress will resume from its last checkpoint"
    ):
        made.run()
    thread.join()
    with opened(made.url, made.name) as ledger:
        assert [(each.state, each.attempts) for each in ledger.trials()] == [("waiting", 0)]


def test_an_interruption_after_one_trial_is_told_with_one(tmp_path: Path, ask: Asks) -> None:
    study = Study(ask(), tmp_path / "s")
    study._asked = "Ctrl-C"
    with pytest.raises(Interrupted, match="Ctrl-C: 1 trial has ended; the work in progress is saved"):
        study._whole([Trial(0, "base", {}, state="done"), Trial(1, "search", {})], None)


def test_an_interruption_in_a_trials_last_evaluation_is_not_lost(tmp_path: Path, ask: Asks) -> None:
    made = study(ask(budget=4, seeds=0), tmp_path, "deaf")
    thread = interrupted_by(made)
    with pytest.raises(Interrupted, match="Ctrl-C: 1 trial has ended"):
        made.run()
    thread.join()
    assert Counter(what for what, *_ in notes(made.folder)) == {"begun": 2, "ended": 1}, "its own, and bowl's"


def test_an_interruption_at_the_very_end_is_none(tmp_path: Path, ask: Asks, monkeypatch: pytest.MonkeyPatch) -> None:
    made = study(ask(budget=3, seeds=0), tmp_path, "bowl")
    made.watch = lambda trials, plan: (
        os.kill(os.getpid(), signal.SIGINT) if len(trials) == 3 and all(each.is_over for each in trials) else None
    )
    assert len(made.run()) == 3


@pytest.mark.slow
def test_a_terminal_that_closes_ends_no_study_under_nohup(tmp_path: Path, ask: Asks) -> None:
    made = study(ask(budget=3, seeds=0), tmp_path, "bowl")
    made.watch = lambda trials, plan: os.kill(os.getpid(), signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup sets it
    try:
        assert len(made.run()) == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_output_that_nobody_reads_any_more_costs_nothing(tmp_path: Path, ask: Asks) -> None:
    made = study(ask(budget=4, seeds=0), tmp_path, "patient")

    def broken(*given: object) -> None:
        raise BrokenPipeError

    made.say, made.watch = broken, broken
    thread = interrupted_by(made, signal.SIGTERM)
    with pytest.raises(Interrupted, match="SIGTERM: 0 trials have ended"):
        made.run()
    thread.join()
    with opened(made.url, made.name) as ledger:
        assert (ledger.trials()[0].state, ledger.trials()[0].attempts) == ("waiting", 0)


@pytest.mark.slow
def test_a_process_that_may_be_unwell_is_replaced_and_the_same_fault_ends_the_study(tmp_path: Path, ask: Asks) -> None:
    question = ask(budget=12, seeds=0)
    made = study(question, tmp_path, "broken")
    with pytest.raises(RunError, match=r"5 trials in a row failed for the same reason: RuntimeError: CUDA error"):
        made.run()
    by = {worker for what, number, worker in notes(made.folder) if what == "begun" and number not in ("0",)}
    assert len(by) == SAME_FAILURES, "a process of its own for each"
    (made.folder / "mended").touch()
    trials = study(question, tmp_path, "broken").run()
    assert len(trials) == 12 and {each.state for each in trials} <= {"done", "infeasible"}


def test_a_trial_that_another_worker_has_by_now_is_let_go(tmp_path: Path, ask: Asks) -> None:
    made = study(ask(budget=3, seeds=0), tmp_path, "taken_away")
    made.lease_seconds = 1.0
    trials = made.run()
    assert {each.state for each in trials} <= {"done", "infeasible"}
    workers = {worker for _, _, worker in notes(made.folder)}
    assert len(workers) == 1, "it goes on with the others"


@pytest.mark.slow
def test_a_worker_that_somebody_else_stops_is_replaced(tmp_path: Path, ask: Asks) -> None:
    said: list[str] = []
    made = study(ask(budget=3, seeds=0), tmp_path, "told_to_leave")
    made.say = said.append
    trials = made.run()
    assert len(trials) == 3 and all(each.is_over for each in trials) and trials[0].attempts == 1
    assert said == ["a worker was stopped by a signal: another worker takes over"]


@pytest.mark.slow
def test_a_budget_in_tokens_is_kept_by_several_workers(tmp_path: Path, ask: Asks) -> None:
    question = ask(budget="1200 tokens", seeds=1, workers=2)
    trials = study(question, tmp_path, "bowl").run()
    spent = sum(each.tokens for each in trials)
    again = [each.of for each in trials if each.kind == "repeat"]
    assert 600 < spent <= 1200 and again == [each.number for each in candidates(question, trials, 0)]
    assert {each.state for each in trials} <= {"done", "infeasible", "dropped"}


def test_a_base_that_was_changed_by_hand_is_not_trained_with(tmp_path: Path, ask: Asks) -> None:
    made = study(ask(budget=4, seeds=0), tmp_path, "bowl")
    text = (made.folder / "base.yaml").read_text()
    (made.folder / "base.yaml").write_text(text.replace("max_steps: 10", "max_steps: 11"))
    made.prepare()  # nothing was trained with it yet
    assert (made.folder / "base.yaml").read_text() == text
    (made.folder / "trials" / "trial-0000").mkdir()
    (made.folder / "base.yaml").write_text(text.replace("max_steps: 10", "max_steps: 11"))
    with pytest.raises(ResumeError, match=r"training\.max_steps differ"):
        made.prepare()
    (made.folder / "base.yaml").write_text(text + "# a remark\n")
    made.prepare()


def test_runs_that_the_ledger_does_not_know_are_in_the_way(tmp_path: Path, ask: Asks) -> None:
    made = study(ask(budget=4, seeds=0), tmp_path, "bowl")
    (made.folder / LEDGER).unlink()  # as after a crash before there was one
    made.prepare()
    (made.folder / "trials" / "trial-0000").mkdir()
    made.prepare()
    (made.folder / LEDGER).unlink()
    for method in ("zoom", "sobol"):
        again = Study(ask(budget=4, seeds=0, method=method), made.folder)
        with pytest.raises(
            RunFolderError, match=r"trials holds runs that are not in .* choose another --name, or remove"
        ):
            again.prepare()


def test_no_guard_changes_the_updates_data_or_learning_rate_of_a_trial(tmp_path: Path, ask: Asks) -> None:
    question = ask(budget=4, seeds=0)
    made = study(question, tmp_path, "bowl")
    assert question.loaded.config.guard.remedy == "lower_rate"
    guard = load(made.folder / "base.yaml").config.guard
    assert guard.enabled and guard.remedy == "none" and guard.max_rollbacks == 0
    assert guard.skip_threshold is None and not guard.quarantine
    assert any("in trials the guard skips no updates" in line for line in words_before(question))


def test_a_worker_is_no_rank_of_another_run_and_has_its_share_of_the_machine() -> None:
    given = {"RANK": "1", "WORLD_SIZE": "4", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "PATH": "x"}
    assert environment(0, 1, given) == {"PATH": "x", **environment(0, 1, {})}
    assert environment(3, 4, {"CUDA_VISIBLE_DEVICES": "5,7"})["CUDA_VISIBLE_DEVICES"] == "7"
    assert devices({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert environment(1, 4, {"CUDA_VISIBLE_DEVICES": ""})["CUDA_VISIBLE_DEVICES"] == ""


def test_the_address_of_the_database_is_in_no_command_line(
    tmp_path: Path, ask: Asks, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    real = subprocess.Popen

    def start(command: list[str], **options: object) -> object:
        started.append(command)
        return real(command, **options)  # pyright: ignore

    monkeypatch.setattr("trainbook.supervisor.subprocess.Popen", start)
    made = study(ask(budget=3, seeds=0), tmp_path, "bowl")
    made.run()
    assert started and not any(made.url in part for command in started for part in command)


def test_last_words_are_those_of_this_start(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.log").write_text("error: an old one\n")
    workers = Workers(tmp_path, "sqlite://", 1, ["sh", "-c", "echo error: a new one"])
    workers.start(0)
    workers.end()
    assert workers.last_words() == "error: a new one"


def test_workers_leave_when_whoever_started_them_is_killed(tmp_path: Path, ask: Asks) -> None:
    made = study(ask(budget=4, seeds=0), tmp_path, "patient")
    code = (
        "import sys, subprocess, os, signal\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)\n"
        f"child.stdin.write({json.dumps({'storage': made.url, 'share': 1.0}).encode()!r} + b'\\n')\n"
        "child.stdin.flush()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    worker = [*made.command, str(made.folder), "--worker", "w", "--lease", "60"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None and parent.stdin is not None
        pid = int(parent.stdout.readline())
        while not (made.folder / "notes.txt").is_file():
            time.sleep(0.05)
        parent.stdin.close()
        parent.wait()
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            time.sleep(0.05)
    with opened(made.url, made.name) as ledger:
        assert ledger.trials()[0].state == "waiting"
