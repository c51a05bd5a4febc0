from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def logs(terminal):
    """The same run, as two tools would have logged it, one of them a little better."""
    rows = [(step, 5.0 - step / 50, 5.1 - step / 50) for step in range(10, 101, 10)]
    Path("mine.csv").write_text("step,loss,val_loss\n" + "".join(f"{s},{a},{b}\n" for s, a, b in rows))
    history = [{"step": s, "loss": a - 0.2} for s, a, _ in rows] + [
        {"step": s, "eval_loss": b - 0.2} for s, _, b in rows
    ]
    Path("theirs").mkdir()
    Path("theirs/trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 100}))
    return terminal


def test_runs_of_other_tools_are_compared(logs):
    text = logs("compare", "mine.csv", "theirs/trainer_state.json").stdout
    assert "Hugging" in text and "CSV" in text
    assert "0.2000 lower (better)" in " ".join(text.split())
    assert "One run each: the spread over seeds is unknown." in " ".join(text.split())


def test_the_answer_can_be_json_and_a_picture(logs):
    pytest.importorskip("matplotlib")
    answer = logs.json("compare", "mine.csv", "theirs", "--metric", "train_loss", "--picture", "curves.svg", "--json")
    assert [run["name"] for run in answer["runs"]] == ["mine", "theirs"] and answer["split"] == "train"
    assert answer["comparisons"][0]["difference"] == pytest.approx(-0.2)
    assert Path("curves.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mine.csv",), "must be given two runs or more, but got 1"),
        (("mine.csv", "theirz"), "there is no run theirz"),
        (("mine.csv", "theirs", "--metric", "los"), "Did you mean 'loss'?"),
        (("mine.csv", "theirs", "--by", "tokens"), "run 'mine' did not log it; it has steps"),
        (("mine.csv", "theirs", "--picture", "x.txt"), "the file must end in .png"),
        (("mine.csv", "mine.csv"), "'mine' is named twice"),
    ],
)
def test_a_mistake_is_a_message_and_exit_code_2(logs, arguments: tuple[str, ...], message: str):
    result = logs("compare", *arguments, code=2)
    assert message in result.stderr and "Traceback" not in result.stderr


def test_runs_of_ours_are_found_by_name_and_torch_stays_unloaded(logs):
    import subprocess
    import sys

    for name, loss in (("a", 3.0), ("b", 2.0)):
        folder = Path("runs") / name
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"schema_version": 1, "name": name}))
        (folder / "metrics.jsonl").write_text(
            json.dumps({"step": 1, "split": "train", "segment": 0, "loss": loss}) + "\n"
        )
    code = (
        "import sys; from trainbook.cli.main import app; app(['compare', 'a', 'b'], standalone_mode=False); "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1.0000 lower (better)" in " ".join(done.stdout.split())


def test_a_page_is_written_with_or_without_a_name(logs):
    told = logs("compare", "mine.csv", "theirs", "--html")
    assert told.stderr.endswith("page: compare.html\n") and "0.2000 lower (better)" in " ".join(told.stdout.split())
    assert logs.json("compare", "--html", "x.html", "mine.csv", "theirs", "--json")["split"] == "eval"
    assert Path("x.html").read_text() == Path("compare.html").read_text()
    logs("compare", "mine.csv", "theirs", "--html", "--by", "steps")
    assert "--html: the file must end in .html, but got 'x.txt'" in logs(
        "compare", "mine.csv", "theirs", "--html", "x.txt", code=2
    ).stderr.replace("\n", " ")
