from __future__ import annotations

import json
import os
import shlex
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import needs

pytestmark = needs("sqlalchemy")


@pytest.fixture(autouse=True)
def _source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers are processes of their own."""
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
def test_a_study_of_four_trials_finds_a_recipe_that_trains(terminal: Any) -> None:
    terminal.tiny = (*terminal.tiny[:-1], "optimizer.learning_rate=1e-5")  # easily bettered
    answer = terminal.json("tune", *terminal.tiny, "--budget", "4", "--seeds", "1", "--name", "s", "--json")
    finalists = answer["finalists"]
    assert finalists and [each["state"] for each in answer["trials"]] == ["done"] * (4 + len(finalists) + 1)
    assert {"state", "values", "loss", "run"} <= set(answer["trials"][0])
    assert finalists[0]["loss"] == min(each["loss"] for each in answer["trials"][:4])
    assert answer["best"]["repeats"]["mean"] == min(each["repeats"]["mean"] for each in finalists)
    assert all((Path(each["run"]) / "metrics.jsonl").is_file() for each in answer["trials"])
    terminal("train", answer["recipe"], "--name", "again", "--quiet")
    # The same command finds all of it done; a smaller budget is another question; a larger one extends the study.
    again = terminal.json("tune", *terminal.tiny, "--budget", "4", "--seeds", "1", "--name", "s", "--json")
    assert again["trials"] == answer["trials"]
    refused = terminal("tune", *terminal.tiny, "--budget", "3", "--seeds", "1", "--name", "s", code=2)
    assert "budget: 4 trials -> 3 trials" in refused.output
    larger = terminal.json("tune", *terminal.tiny, "--budget", "5", "--seeds", "1", "--name", "s", "--json")
    searched = [[each for each in found["trials"] if each["kind"] == "search"] for found in (answer, larger)]
    assert len(searched[1]) == len(searched[0]) + 1
    assert [(each["run"], each["loss"]) for each in searched[1]][:-1] == [
        (each["run"], each["loss"]) for each in searched[0]
    ]


@pytest.mark.slow
def test_bad_trials_are_stopped_early_and_go_on_from_where_they_paused(terminal: Any) -> None:
    study = "base: gpt-tiny\nnuisance: {learning_rate: {low: 1e-6, high: 0.1}}\nbudget: 8\nseeds: 0\npruning: asha\n"
    Path("study.yaml").write_text(study)
    fixed = [each for each in terminal.tiny[1:-1] if not each.startswith("training.max_steps")]
    fixed.append("training.max_steps=18")
    answer = terminal.json("tune", "study.yaml", *fixed, "--workers", "2", "--json")
    states = {each["state"] for each in answer["trials"]}
    assert states == {"done", "pruned"}
    pruned = next(each for each in answer["trials"] if each["state"] == "pruned")
    done = next(each for each in answer["trials"] if each["state"] == "done" and each["kind"] == "search")
    assert pruned["tokens"] < done["tokens"]
    events = [json.loads(line)["kind"] for line in (Path(done["run"]) / "events.jsonl").read_text().splitlines()]
    assert events.count("resume") == 2, "at each of the two rungs"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "2"], "--budget: 2 trials are too few"),
        (["--budget", "some"], "--budget: must be a number of trials"),
        (["--method", "grid"], "--method: must be one of sobol, random, zoom, one-at-a-time, tpe, gp"),
        (["--ray", "10.0.0.1:6379"], "--ray: tasks on other machines cannot reach a file on this one"),
        (["--workers", "0"], "--workers: must be a whole number >= 1 or auto, but got 0"),
        (["--name", "../s"], "a study's name must begin with a letter or digit"),
        (["--name", "."], "a study's name must begin with a letter or digit"),
        (["optimizer.learning_rat=1"], "Did you mean optimizer.learning_rate?"),
        (["data.validation_ratio=0"], "a study compares trials by their evaluation"),
    ],
)
def test_a_mistake_is_a_message_and_nothing_is_begun(terminal: Any, arguments: list[str], message: str) -> None:
    answer = terminal("tune", *terminal.tiny, *arguments, code=2)
    assert message in answer.output
    assert not Path("runs").exists()


def test_what_is_searched_for_hours_or_tokens_is_told_once_when_the_base_has_been_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from trainbook.cli.tune import _Table
    from trainbook.study.tune.planning import make_plan
    from trainbook.study.tune.study_file import read_question

    question = read_question("gpt-tiny", budget="4M tokens")
    table = _Table(question, quiet=False)
    table.show([], {})
    assert capsys.readouterr().out == ""
    plan = make_plan(question, 12, ["the base took 0.3 M tokens"]).as_json()
    table.show([], plan)
    table.show([], plan)
    told = capsys.readouterr().out
    assert told.count("the base took") == 1 and "optimizer.learning_rate: 1e-5 to" in told


def test_what_will_be_repeated_is_told_before_the_first_trial() -> None:
    from trainbook.cli.tune import _announce
    from trainbook.study.tune.study_file import read_question

    told: list[str] = []
    for seeds in (2, 0):
        _announce(read_question("gpt-tiny", budget="3", seeds=seeds), Path("runs/s"), False, told.append, [])
    first, second = (line.removeprefix("  search     ") for line in told if line.startswith("  search"))
    again = "then the base and the best trials that are better than it, up to three, repeated with 2 new seeds"
    most = "(at most 11 runs in all; --seeds 0 runs the search alone)"
    assert first == f"3 trials with sobol, {again} {most}; 1 worker"
    assert second == "3 trials with sobol; 1 worker"


def test_which_trials_are_repeated_is_told_once_when_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    from trainbook.cli.tune import _Table
    from trainbook.study.tune.study_file import read_question
    from trainbook.study.tune.trial import Trial

    table = _Table(read_question("gpt-tiny", budget="3", seeds=1), quiet=False)
    trials = [Trial(0, "base", {}, state="done", loss=2.0), Trial(1, "search", {}, state="done", loss=1.0)]
    table.show(trials, None)
    trials.append(Trial(2, "search", {}, state="done", loss=3.0))  # ended between two looks
    again = [Trial(3, "repeat", {}, state="done", loss=1.5, seed=1, of=1), Trial(4, "repeat", {}, seed=1, of=0)]
    for _ in range(2):
        table.show([*trials, *again], None)
    told = " ".join(capsys.readouterr().out.split())
    line = "then repeated with 1 new seed: trial 1, the only one better than the base, and the base (trial 0)"
    assert told.count(line) == 1
    assert told.index("2 3.0000") < told.index(line) < told.index("3 repeat 1 1.5000")


def test_a_password_is_not_in_what_is_said_to_go_on_with(terminal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = terminal("tune", *terminal.tiny, "--budget", "4", "--storage", "mysql://me:secret@host/x", code=2)
    assert "secret" not in refused.output and "--storage" in refused.output


def test_two_knobs_of_one_name_are_both_in_a_trials_line() -> None:
    from trainbook.cli.tune import _line
    from trainbook.study.tune.trial import Trial

    values = {"optimizer.type": "lion", "schedule.type": "cosine", "model.bias": True, "model.dropout": 0.1}
    told = _line(Trial(3, "search", values, state="done", loss=1.0))
    assert told.endswith("optimizer.type=lion  schedule.type=cosine  bias=true  dropout=0.1")


def test_the_table_counts_trials_and_repetitions_apart_and_shows_lists() -> None:
    from trainbook.cli.tune import _Table
    from trainbook.study.tune.study_file import read_question
    from trainbook.study.tune.trial import Trial
    from trainbook.terminal import new_console

    table = _Table(read_question("gpt-tiny", budget="3"), quiet=False)
    trials = [Trial(number, "search", {}, state="done", loss=2.0) for number in range(2)]
    trials.append(Trial(2, "search", {"model.lora_targets": ("q", "v")}, state="done", loss=1.0))

    def shown(given: list[Trial]) -> str:
        console = new_console(width=100, color_system=None)
        with console.capture() as captured:
            console.print(table._table(given, {"trials": 3}))
        return captured.get()

    assert "3 of 3 trials, then the repetitions" in shown(trials)
    assert "lora_targets=['q', 'v']" in shown(trials)
    repeats = [Trial(3, "repeat", {}, of=2, seed=1, state="done", loss=1.0), Trial(4, "repeat", {}, of=2, seed=2)]
    assert "3 of 3 trials, 1 of 2 repetitions" in shown([*trials, *repeats])


def test_a_folder_that_is_something_else_is_left_alone(terminal: Any) -> None:
    Path("runs/s").mkdir(parents=True)
    Path("runs/s/mine.txt").write_text("x")
    answer = terminal("tune", *terminal.tiny, "--budget", "4", "--name", "s", code=2)
    assert "is not a tuning study" in answer.output
    assert os.listdir("runs/s") == ["mine.txt"]


def test_a_folder_that_cannot_be_made_is_a_message(terminal: Any) -> None:
    Path("runs").mkdir()
    Path("runs/s").write_text("x")
    answer = terminal("tune", *terminal.tiny, "--budget", "4", "--name", "s", code=2)
    assert "runs/s cannot be created: File exists" in answer.output
    assert Path("runs/s").read_text() == "x"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate-range", "--for-batch", "8"], "cannot be combined"),
        (["--rate-range", "--budget", "8"], "--budget: has no effect with --rate-range"),
        (["--rate-range", "--storage", "sqlite://"], "--storage: has no effect with --rate-range"),
        (["--measured", "x.json"], "--measured: has no effect without --for-batch"),
        (["--picture", "x.png"], "--picture: has no effect without --rate-range"),
        (["--for-batch", "8", "--measured", "text.txt"], "--measured: text.txt was not written by"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(terminal: Any, arguments: list[str], message: str) -> None:
    assert message in terminal("tune", *terminal.tiny, *arguments, code=2).output


@pytest.mark.parametrize("arguments", [["--rate-range"], ["--for-batch", "8"]])
def test_what_is_asked_about_one_training_is_not_asked_of_a_study(terminal: Any, arguments: list[str]) -> None:
    Path("study.yaml").write_text("base: gpt-tiny\nnuisance: {optimizer.learning_rate: [1e-4, 1e-2]}\n")
    told = terminal("tune", "study.yaml", *arguments, code=2).output
    assert f"study.yaml: is a study, but {arguments[0]} needs a recipe or a configuration" in told


def test_the_rate_range_and_the_batch_are_told_without_a_study(terminal: Any) -> None:
    answer = terminal.json("tune", *terminal.tiny, "--rate-range", "--picture", "rates.png", "--json")
    assert answer["search"][0] < answer["search"][1] and Path("rates.png").is_file()
    told = terminal("tune", *terminal.tiny, "--for-batch", "8").output
    assert "training.max_steps             8 -> 4" in told
    assert not Path("runs").exists()


def test_a_measured_noise_scale_may_have_no_end_and_must_be_a_number(terminal: Any) -> None:
    from trainbook.runs import jsonl

    def told(code: int = 0, **facts: Any) -> str:
        Path("m.json").write_text(jsonl.dumps(facts))
        return terminal("tune", *terminal.tiny, "--for-batch", "8", "--measured", "m.json", code=code).output

    assert "a larger batch still helps" in told(noise_scale_tokens=float("inf"))
    assert "has no noise scale" in told(2, noise_scale_tokens=None)
    for wrong, shown in ((True, "true"), (0, "0"), (-3.5, "-3.5"), (float("nan"), ".nan"), ("many", "'many'")):
        message = f"m.json: noise_scale_tokens must be a number > 0, but got {shown}."
        assert message in " ".join(told(2, noise_scale_tokens=wrong).split())
    assert "noise_tokens_per_row must be" in " ".join(told(2, noise_scale_tokens=9, noise_tokens_per_row=0).split())


@pytest.mark.parametrize("steps", ["training.max_steps=20", "max_steps=20"])
def test_the_command_for_another_batch_gives_no_knob_twice(terminal: Any, steps: str) -> None:
    from trainbook.knobs import load

    told = terminal("tune", "gpt-tiny", steps, "schedule.warmup_steps=4", "--for-batch", "32").output
    words = shlex.split(told.partition("next ")[2])
    assert words[:2] == ["trainbook", "train"]
    config = load(words[2], words[3:]).config
    assert (config.training.max_steps, config.batch.global_batch_size) == (10, 32)


@pytest.mark.slow
def test_a_training_that_is_killed_is_taken_over_and_goes_on_from_its_checkpoint(terminal: Any) -> None:
    from trainbook.runs import RunFolder
    from trainbook.runs.disk import read_holder
    from trainbook.study.tune.run import Study
    from trainbook.study.tune.study_file import read_question

    length = ("training.max_steps=400", "checkpoint.save_steps=5", "evaluation.eval_steps=400")
    names = {each.partition("=")[0] for each in length}
    fixed = [each for each in terminal.tiny[1:] if each.partition("=")[0] not in names]
    made = Study(read_question("gpt-tiny", [*fixed, *length], budget=3, seeds=0), Path("runs/s"))
    made.prepare()
    folder = RunFolder(made.folder / "trials" / "trial-0001")

    def kill() -> None:
        while not any(folder.checkpoints.glob("step-*")):
            time.sleep(0.01)
        holder = read_holder(folder.lock_file)
        assert holder is not None
        os.kill(holder.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    trials = made.run()
    thread.join()
    assert [each.state for each in trials] == ["done"] * 3
    assert [each.attempts for each in trials] == [1, 2, 1]
    resumed = [event["step"] for event in folder.events() if event["kind"] == "resume"]
    assert len(resumed) == 1 and resumed[0] >= 5
    assert folder.metrics("train")[-1]["step"] == 400


def test_a_rate_that_was_found_at_another_batch_is_told_as_it_is_trained_with(terminal: Any) -> None:
    told = terminal("tune", *terminal.tiny, "optimizer.tuned_batch_size=1", "--rate-range").output  # a batch of 4
    assert "configured 0.02 (optimizer.learning_rate 0.01, scaled by 2)" in told
