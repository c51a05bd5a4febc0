from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_a_page_and_a_card_are_written_into_the_folder(trained):
    told = trained("report", "run").stdout
    assert told.startswith("run: Finished after 8 steps. Best validation loss ")
    for name in ("report.html", "report.md"):
        assert f"runs/run/{name}" in told and (Path("runs/run") / name).stat().st_size > 3000
    assert trained("report", "runs/run").stdout == told


def test_the_folder_can_be_another_one_and_the_answer_json(trained):
    before = Path("runs/run/report.md").read_bytes()
    answer = trained.json("report", "run", "--to", "pages/of/run", "--json")
    assert {name: answer[name] for name in ("name", "kind", "status")} == {
        "name": "run",
        "kind": "run",
        "status": "finished",
    }
    assert answer["html"] == "pages/of/run/report.html" and Path(answer["markdown"]).read_text().startswith("# run: ")
    assert Path("runs/run/report.md").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "run"), "To see runs side by side: trainbook compare run run"),
        (("rum",), "there is no run or study runs/rum. Did you mean runs/run?"),
        (("tuend",), "there is no run or study runs/tuend. Did you mean runs/tuned?"),
        (("nothing-like-it",), "there is no run or study runs/nothing-like-it."),
        (("cache",), "cache is not a run folder"),
        (("run", "--to", "text.txt"), "Choose another folder with --to DIR."),
        (("run", "--too", "x"), "No such option"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(trained, arguments: tuple[str, ...], message: str):
    study = Path("runs/tuned")
    study.mkdir(exist_ok=True)
    for name in ("base.yaml", "study.db"):
        (study / name).touch()
    result = trained("report", *arguments, code=2)
    assert message in " ".join(result.stderr.split()) and "Traceback" not in result.stderr


def test_lines_that_cannot_be_read_are_noticed(terminal):
    terminal.train("--name", "run", "--quiet")
    with Path("runs/run/metrics.jsonl").open("a") as file:
        file.write("no row\n")
    told = terminal("report", "run").stderr
    assert "notice: " in told and "metrics.jsonl" in told


def test_a_study_is_recognised(trained):
    study = Path("runs/begun")
    (study / "trials").mkdir(parents=True)
    (study / "base.yaml").touch()
    assert trained.json("report", "begun", "--json")["status"] == "unfinished"
    assert (study / "report.html").is_file()


def test_a_resumed_run_is_not_disturbed_by_a_page_in_its_folder(terminal):
    terminal.train("--name", "run", "--quiet")
    terminal("report", "run")
    terminal("resume", "run", "training.max_steps=10", "--accept-changes", "--quiet")
    assert terminal.json("report", "run", "--json")["headline"].startswith("Finished after 10 steps.")


def test_torch_stays_unloaded(trained):
    script = (
        "import sys; from typer.testing import CliRunner; from trainbook.cli.main import app; "
        "answer = CliRunner().invoke(app, ['report', 'run']); assert answer.exit_code == 0, answer.output; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
