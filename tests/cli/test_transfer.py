"""trainbook transfer, as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import slow
from typer.testing import CliRunner, Result

from trainbook.cli.main import app
from trainbook.knobs import load


@pytest.fixture
def recipe(lab) -> str:
    config = lab.config() | {"training": {"max_steps": 3, "device": "cpu"}, "schedule": {"warmup_steps": 1}}
    config["evaluation"] = {"eval_steps": 3, "eval_max_samples": 4}
    path = lab.root / "small.yaml"
    path.write_text(json.dumps(config))
    return str(path)


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["transfer", *map(str, arguments)])


def test_rates_are_ordinary_runs_and_the_same_command_finds_them(lab, recipe: str, tmp_path: Path):
    asked = (recipe, "--rates", "--sizes", "16,32", "--learning-rates", "1e-3,1e-2,1e-1", "--name", "s")
    first = run(*asked, "--runs-dir", lab.runs, "--picture", tmp_path / "rates.png")
    assert first.exit_code == 0, first.output
    assert "mup: learning rate" in " ".join(first.output.split()) and (tmp_path / "rates.png").stat().st_size > 10_000
    runs = {folder.name for folder in (lab.runs / "s" / "runs").iterdir()}
    assert "standard-32-rate-0.01-seed-0" in runs and "mup-16-rate-0.01-seed-0" in runs
    assert not list((lab.runs / "s").glob("runs/*/checkpoints/*")), "their weights would fill a disk"
    again = run(*asked, "--runs-dir", lab.runs, "--json")
    assert again.exit_code == 0, again.output
    answer = json.loads(again.stdout)
    assert set(answer["arms"]) == {"standard", "mup"} and len(runs) == answer["runs"]
    assert answer["arms"]["standard"]["sizes"][-1] == answer["arms"]["mup"]["sizes"][-1]
    assert {folder.name for folder in (lab.runs / "s" / "runs").iterdir()} == runs


def started(*arguments: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trainbook", "transfer", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "workers"), [(signal.SIGKILL, 1), (signal.SIGINT, 1), (signal.SIGINT, 2)])
def test_a_study_that_was_killed_or_stopped_ends_as_if_it_had_not_been(
    lab, recipe: str, how: signal.Signals, workers: int
):
    length = ("training.max_steps=30", "evaluation.eval_steps=10")
    asked = (recipe, *length, "--rates", "--sizes", "16,32", "--learning-rates", "1e-3,1e-2,1e-1")
    process = started(*asked, "--runs-dir", lab.runs, "--name", "cut", "--workers", workers)
    begun = lab.runs / "cut" / "runs" / "standard-16-rate-0.01-seed-0" / "metrics.jsonl"
    while process.poll() is None and not (begun.is_file() and begun.stat().st_size):
        time.sleep(0.01)
    before = len(list(begun.parent.parent.iterdir()))
    os.killpg(process.pid, how)  # as a terminal does with Ctrl-C
    told, _ = process.communicate()
    assert len(list(begun.parent.parent.iterdir())) <= before + workers, "nothing begins after it"
    assert process.returncode == (130 if how is signal.SIGINT else -how), told.decode()
    assert "Traceback" not in told.decode()
    if how is signal.SIGINT:
        assert "To resume, run the same command with --name cut" in told.decode()
    answers = [json.loads(run(*asked, "--runs-dir", lab.runs, "--name", n, "--json").stdout) for n in ("cut", "whole")]
    assert answers[0]["runs"] == answers[1]["runs"]
    for arm in ("standard", "mup"):
        for cut, whole in zip(*(answer["arms"][arm]["sizes"] for answer in answers), strict=True):
            # Another process may add up in another order.
            assert [rate for rate, _ in cut["losses"]] == [rate for rate, _ in whole["losses"]]
            assert [loss for _, loss in cut["losses"]] == pytest.approx([loss for _, loss in whole["losses"]], rel=1e-5)


@pytest.mark.slow
def test_a_coordinate_check_answers_with_slopes_and_a_picture(lab, recipe: str, tmp_path: Path):
    asked = (recipe, "--coordinate-check", "--sizes", "16,32", "--steps", "2")
    told = run(*asked, "--picture", tmp_path / "check.png")
    assert told.exit_code == 0, told.output
    assert "feed_forward.down" in told.output and (tmp_path / "check.png").stat().st_size > 10_000
    answer = json.loads(run(*asked, "--json").stdout)
    assert len(answer["arms"]["mup"]["slopes"]["logits"]) == 3
    assert answer["arms"]["mup"]["sizes"]["logits"][0][0] == answer["arms"]["standard"]["sizes"]["logits"][0][0]


@pytest.mark.parametrize("question", [slow("--coordinate-check"), "--rates"])
@pytest.mark.parametrize("how", [(), ("--json",)], ids=["words", "json"])
def test_a_picture_that_cannot_be_written_takes_no_answer_with_it(
    lab, recipe: str, question: str, how: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from trainbook.charts import study as charts
    from trainbook.errors import UserError
    from trainbook.study.transfer import rates as cells

    full = raising(UserError("the picture cannot be written: No space left on device."))
    monkeypatch.setattr(cells, "train_cell", lambda child: cells.CellOutcome(1.0))
    monkeypatch.setattr(charts, "draw_coordinate_check", full)
    monkeypatch.setattr(charts, "draw_rates", full)
    more = ("--steps", "1") if question == "--coordinate-check" else ("--name", "s", "--runs-dir", lab.runs)
    told = run(recipe, question, "--sizes", "16,32", *more, "--picture", tmp_path / "check.png", *how)
    assert told.exit_code == 2 and "No space left" in told.stderr and "picture: " not in told.stderr
    assert set(json.loads(told.stdout)["arms"]) == {"standard", "mup"} if how else "mup" in told.stdout


@pytest.mark.usefixtures("forked_workers")
def test_what_a_small_model_finds_is_written_for_the_large_one(lab, recipe: str):
    asked = (recipe, "--proxy", "8", "--budget", "3", "--seeds", "1", "--name", "p", "--runs-dir", lab.runs)
    told = run(*asked)
    assert told.exit_code == 0, told.output
    assert "For width 16: " in told.output and "FLOPs" in told.output
    trials = {path.name for path in (lab.runs / "p" / "trials").iterdir()}
    again = run(*asked, "--json")
    assert again.exit_code == 0, again.output
    answer = json.loads(again.stdout)
    assert {path.name for path in (lab.runs / "p" / "trials").iterdir()} == trials, "nothing is trained twice"
    assert answer["proxy"] == 8 and answer["width"] == 16 and 0 < answer["cost"]["share"] < 1
    large = load(answer["recipe"])
    model = large.config.model
    assert (model.hidden_size, model.parametrization, model.base_hidden_size) == (16, "mup", 16)
    assert {path: large.get(path) for path in answer["found"]} == answer["found"]
    small = load(answer["proxy_recipe"]).config.model
    assert (small.hidden_size, small.num_attention_heads, small.base_hidden_size) == (8, 1, 16)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_another_large_width_needs_no_new_search_if_the_base_is_named(lab, recipe: str):
    named = ("model.parametrization=mup", "model.base_hidden_size=16")
    asked = ("--proxy", "8", "--budget", "3", "--seeds", "1", "--name", "p", "--runs-dir", lab.runs, "--json")
    answers, written = [], []
    for sizes in ((), ("model.hidden_size=32", "model.num_attention_heads=4")):
        told = run(recipe, *named, *sizes, *asked)
        assert told.exit_code == 0, told.output
        answers.append(json.loads(told.stdout))
        written.append({path: path.stat().st_mtime_ns for path in (lab.runs / "p" / "trials").glob("*/metrics.jsonl")})
    assert written[0] == written[1] and answers[0]["found"] == answers[1]["found"]
    assert load(answers[1]["recipe"]).config.model.hidden_size == answers[1]["width"] == 32


@pytest.mark.slow
def test_a_study_of_one_kind_leaves_the_folder_of_another_alone(lab, recipe: str):
    rates = (recipe, "--rates", "--sizes", "8,16", "--learning-rates", "1e-2,1e-1,1", "--name", "r")
    proxy = (recipe, "--proxy", "8", "--budget", "3", "--seeds", "1", "--name", "p")
    for asked in (rates, proxy):
        assert run(*asked, "--runs-dir", lab.runs).exit_code == 0
    files = {path: path.read_bytes() for path in lab.runs.glob("*/*") if path.is_file()}
    for asked, other, kind in ((rates, "p", "transfer"), (proxy, "r", "tuning")):
        answer = run(*asked[:-1], other, "--runs-dir", lab.runs)
        assert answer.exit_code == 2 and f"is not a {kind} study" in answer.output, answer.output
    assert {path: path.read_bytes() for path in lab.runs.glob("*/*") if path.is_file()} == files


def test_a_study_without_a_name_has_one_to_go_on_with(recipe: str, lab, monkeypatch: pytest.MonkeyPatch):
    """Whatever the recipe's file is called: what an interruption says to go on with is a name that can be given."""
    from trainbook.errors import Interrupted
    from trainbook.study.transfer import rates as cells
    from trainbook.study.tune.run import Study

    def interrupted(*arguments: Any) -> Any:
        raise Interrupted("Ctrl-C")

    monkeypatch.setattr(cells, "train_cell", interrupted)
    monkeypatch.setattr(Study, "run", interrupted)
    odd = Path(recipe).rename(lab.root / "my model (2).yaml")
    for asked in (("--rates", "--sizes", "16,32"), ("--proxy", "8", "--budget", "3")):
        told = run(odd, *asked, "--runs-dir", lab.runs)
        assert told.exit_code == 130, told.output
        name = told.output.strip().rpartition("--name ")[2]
        again = run(odd, *asked, "--runs-dir", lab.runs, "--name", name)
        assert again.exit_code == 130 and (lab.runs / name).is_dir(), again.output


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_proxys_search_goes_on_after_a_kill_and_after_ctrl_c(lab, recipe: str, how: signal.Signals):
    asked = (recipe, "training.max_steps=30", "--proxy", "8", "--budget", "3", "--seeds", "1", "--runs-dir", lab.runs)
    process = started(*asked, "--name", "cut")
    begun = lab.runs / "cut" / "trials" / "trial-0001" / "metrics.jsonl"
    while process.poll() is None and not (begun.is_file() and begun.stat().st_size):
        time.sleep(0.01)
    process.send_signal(how)
    told, _ = process.communicate()
    assert process.returncode == (130 if how is signal.SIGINT else -how), told.decode()
    assert "Traceback" not in told.decode()
    answers = [json.loads(run(*asked, "--name", name, "--json").stdout) for name in ("cut", "whole")]
    assert answers[0]["found"] == answers[1]["found"] and answers[0]["cost"] == answers[1]["cost"]


@pytest.mark.slow
def test_a_cell_without_room_is_an_outcome_and_a_mistake_is_raised(lab, monkeypatch: pytest.MonkeyPatch):
    import torch

    from trainbook.errors import ConfigError, Diverged, TooLarge
    from trainbook.study.child_run import ChildRun
    from trainbook.study.transfer.rates import train_cell

    full, surely = torch.OutOfMemoryError("full"), TooLarge("the run needs at least 90 GB")
    large, child = "out of memory", ChildRun(Path("base.yaml"), [], "cell", lab.runs)
    for error, reason in ((full, large), (surely, large), (Diverged("so"), "diverged")):
        monkeypatch.setattr(ChildRun, "_train", raising(error))
        found = train_cell(child)
        assert found.loss is None and found.reason is not None and reason in found.reason
    monkeypatch.setattr(ChildRun, "_train", raising(ConfigError([])))
    with pytest.raises(ConfigError):
        train_cell(child)


def raising(error: Exception) -> Any:
    def train(*arguments: Any, **options: Any) -> Any:
        raise error

    return train


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "one of --coordinate-check, --rates and --proxy WIDTH"),
        (("--rates", "--coordinate-check"), "one of --coordinate-check, --rates and --proxy WIDTH"),
        (("--rates", "--proxy", "8"), "one of --coordinate-check, --rates and --proxy WIDTH"),
        (("--rates", "--rate", "0.1"), "--rate: has no effect with --rates; it is for --coordinate-check"),
        (("--proxy", "8", "--sizes", "8,16"), "--sizes: has no effect with --proxy"),
        (("--coordinate-check", "--budget", "3"), "--budget: has no effect with --coordinate-check"),
        (("--proxy", "16"), "--proxy: must be a width below model.hidden_size, 16, but got 16"),
        (("--proxy", "12"), "--proxy: widths must be multiples of the head width, 8, but got 12"),
        (
            ("--proxy", "8", "model.intermediate_size=33"),
            "--proxy: at 8, model.intermediate_size would not be a whole number",
        ),
        (("--proxy", "8", "--budget", "2"), "too few"),
        (("--proxy", "8", "--method", "sobl"), "Did you mean sobol?"),
        (("--rates", "--sizes", "16,x"), "--sizes: must be comma-separated whole numbers"),
        (("--rates", "--sizes", ""), "--sizes: must be comma-separated whole numbers, but got ''"),
        (("--rates", "--sizes", "32,16"), "two or more different widths in rising order"),
        (("--rates", "--sizes", "16,20"), "multiples of the head width, 8"),
        (("--rates", "--by", "depth"), "--sizes: must be given with --by depth"),
        (("--rates", "--learning-rates", ""), "--learning-rates: must be comma-separated numbers"),
        (("--rates", "--learning-rates", "1,2"), "--learning-rates: must be three or more"),
        (("--coordinate-check", "--rate", "0"), "--rate: must be a number above 0, but got 0"),
        (("--coordinate-check", "--rate", "nan"), "--rate: must be a number of at most 1e+30, but got nan"),
        (("--coordinate-check", "--rate", "inf"), "--rate: must be a number of at most 1e+30, but got inf"),
        (("--rates", "--name", "../s"), "a study's name must begin with a letter or digit"),
        (("--proxy", "8", "--name", ""), "a study's name must begin with a letter or digit"),
        (
            ("--rates", "--sizes", "16,32", "--name", "s", "--runs-dir", "/dev/null"),
            "cannot be created: Not a directory",
        ),
        (("--proxy", "8", "--name", "s", "--runs-dir", "/dev/null"), "cannot be created: Not a directory"),
        (("--coordinate-check", "--picture", "x.gif"), "must end in .png"),
        (("model.lora_rank=8", "--rates"), "model.pretrained"),
        (("model.type=own.model:Net", "--rates"), "must be gpt, bert or t5"),
        (("--rates", "--by", "depth", "--sizes", "1,2", "model.norm_position=post"), "needs model.norm_position pre"),
    ],
)
def test_a_mistake_is_a_message(recipe: str, arguments: tuple[str, ...], message: str):
    answer = run(recipe, *arguments)
    assert answer.exit_code == 2 and message in answer.output, answer.output
    assert answer.exception is None or isinstance(answer.exception, SystemExit)


def test_the_help_has_examples():
    told = run("--help").output
    assert told.count("trainbook transfer gpt-tiny") == 3 and "--proxy 128" in told


@pytest.mark.slow
def test_a_check_takes_three_seeds_unless_it_is_told(lab, recipe: str):
    asked = (recipe, "--coordinate-check", "--sizes", "16,32", "--steps", "1", "--json")
    assert [json.loads(run(*asked, *more).stdout)["seeds"] for more in ((), ("--seeds", 1))] == [3, 1]
