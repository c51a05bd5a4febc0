from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LINES = ["alpha beta", "gamma and the delta of seven runs that never end", "x"]


@pytest.fixture
def texts(trained: Any) -> str:
    Path("new.txt").write_text("\n".join(LINES) + "\n")
    return "new.txt"


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_answers_are_printed_one_object_a_line_and_the_rest_beside_them(trained, texts):
    answer = trained("predict", "run", texts)
    found = rows(answer.stdout)
    assert [row["text"] for row in found] == LINES and all(row["loss"] > 0 for row in found)
    assert "bits per byte" in answer.stderr


def test_answers_are_written_to_a_file(trained, texts):
    printed = trained("predict", "run", texts).stdout
    answer = trained("predict", "runs/run", texts, "--output", "out/new.jsonl")
    assert Path("out/new.jsonl").read_text() == printed
    assert answer.stdout == "" and "3 predictions in out/new.jsonl" in answer.stderr
    assert [path.name for path in Path("out").iterdir()] == ["new.jsonl"], "nothing else is left"


def test_a_pipe_is_written_to_and_stays_one(trained, texts):
    """As /dev/null and /dev/stdout stay what they are: a file in their place would be there for all programs."""
    os.mkfifo("pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()), daemon=True)
    reader.start()
    trained("predict", "run", texts, "--output", "pipe", "--quiet")
    reader.join(timeout=20)
    assert Path("pipe").is_fifo() and [row["text"] for row in rows(read[0])] == LINES


def test_of_a_link_the_target_is_written(trained, texts):
    Path("nothing").symlink_to(os.devnull)
    Path("elsewhere").mkdir()
    Path("linked.jsonl").symlink_to("elsewhere/real.jsonl")
    for name in ("nothing", "linked.jsonl"):
        trained("predict", "run", texts, "--output", name, "--quiet")
        assert Path(name).is_symlink()
    assert len(rows(Path("elsewhere/real.jsonl").read_text())) == 3
    assert Path(os.devnull).is_char_device()


def test_json_is_one_object(trained, texts):
    answer = trained.json("predict", "run", texts, "--json")
    assert [row["text"] for row in answer["predictions"]] == LINES and answer["metrics"]["targets"] > 0
    answer = trained.json("predict", "run", texts, "--output", "new.jsonl", "--json")
    assert answer["output"] == "new.jsonl" and answer["predictions"] == 3


def test_quiet_is_quiet(trained, texts):
    assert trained("predict", "run", texts, "--output", "new.jsonl", "--quiet").output == ""


def test_a_checkpoint_can_be_named(trained, texts):
    losses = [
        rows(trained("predict", "run", texts, "--checkpoint", which).stdout)[0]["loss"]
        for which in ("4", "8", "latest", "last", "step-00000008")
    ]
    assert losses[0] != losses[1] and set(losses[1:]) == {losses[1]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "none.jsonl"), "FILE: 'none.jsonl' does not exist"),
        (("runn", "new.txt"), "Did you mean runs/run?"),
        (("run", "new.txt", "--checkpoint", "newest"), "checkpoint: must be best, latest or a step"),
        (("run", "new.txt", "--num-beams", "0"), "num-beams: must be >= 1"),
        (("run", "new.txt", "--output", "runs"), "--output: must be a file, but runs is a folder"),
        (("run", "columns.jsonl"), "Set --text-field"),
    ],
)
def test_a_mistake_is_a_message_and_leaves_nothing(trained, texts, arguments, message: str):
    Path("columns.jsonl").write_text('{"left": "one", "right": "two"}\n')
    answer = trained("predict", *arguments, code=2)
    assert message in answer.stderr and answer.stdout == ""


def interrupting(answers: Iterator[Any], after: int, error: BaseException) -> Iterator[Any]:
    for number, answer in enumerate(answers):
        if number == after:
            raise error
        yield answer


def test_what_was_done_before_ctrl_c_is_kept_as_whole_lines(trained, texts, monkeypatch):
    from trainbook.loop.predict import Prediction

    real = Prediction.__iter__
    monkeypatch.setattr(Prediction, "__iter__", lambda self: interrupting(real(self), 2, KeyboardInterrupt()))
    answer = trained("predict", "run", texts, "--output", "stopped.jsonl", code=130)
    assert [row["text"] for row in rows(Path("stopped.jsonl").read_text())] == LINES[:2]
    assert "the first 2 predictions are in stopped.jsonl" in answer.stderr
    assert "interrupted after 2 predictions" in trained("predict", "run", texts, code=130).stderr


def test_a_mistake_in_the_middle_leaves_the_file_as_it_was(trained):
    Path("kept.jsonl").write_text("as it was\n")
    Path("half.jsonl").write_text('{"text": "one"}\n{"text": 2}\n')
    assert "half.jsonl:2" in trained("predict", "run", "half.jsonl", "--output", "kept.jsonl", code=2).stderr
    assert Path("kept.jsonl").read_text() == "as it was\n"
    assert not list(Path().glob(".kept*"))


WORDS = ("sun", "rain", "wind", "snow", "fog")
TASKS = {
    "classify": ("bert", {"text": "text", "label": "label"}),
    "regress": ("bert", {"text": "text", "number": "score"}),
    "tag": ("bert", {"words": "words", "tags": "tags"}),
    "seq2seq": ("t5", {"text": "text", "target": "target"}),
}


def record(number: int) -> dict[str, Any]:
    words = [WORDS[number % 5], WORDS[number // 5 % 5], WORDS[number * 7 % 5]]
    return {
        "text": " ".join(words),
        "label": "wet" if number % 5 == 1 else "dry",
        "number": number % 5 / 2,
        "words": words,
        "tags": ["weather" if word in ("rain", "snow") else "other" for word in words],
        "target": " ".join(reversed(words)),
    }


@pytest.mark.parametrize("task", TASKS)
def test_a_model_is_judged_here_as_in_its_last_evaluation(terminal, task: str):
    """What is found in a file of validation data is what training found in it, to the last digits."""
    kind, fields = TASKS[task]
    for name, numbers in (("train.jsonl", range(60)), ("held-out.jsonl", range(60, 75))):
        lines = [json.dumps({field: record(number)[what] for what, field in fields.items()}) for number in numbers]
        Path(name).write_text("\n".join(lines) + "\n")
    config: dict[str, Any] = {
        "model": {"type": kind, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2},
        "data": {
            "source": "train.jsonl",
            "validation": "held-out.jsonl",
            "samples": "documents",
            "max_seq_length": 24,
            "cache_dir": "cache",
        },
        "batch": {"global_batch_size": 4},
        "training": {"task": task, "max_steps": 4},
        "schedule": {"warmup_steps": 1},
    }
    if task == "seq2seq":
        config["model"]["position"] = "relative"
        config["data"]["max_target_length"] = 8
        config["evaluation"] = {"generate": True}
    Path("config.yaml").write_text(json.dumps(config))
    terminal("train", "config.yaml", "--name", task, "--quiet")
    last = [json.loads(line) for line in Path(f"runs/{task}/metrics.jsonl").read_text().splitlines()][-1]
    found = terminal.json("predict", task, "held-out.jsonl", "--checkpoint", "latest", "--json")["metrics"]
    assert last["split"] == "eval" and len(found) >= 2
    assert found == pytest.approx({name: last[name] for name in found}, rel=1e-5)


@pytest.mark.parametrize(
    ("unusable", "empty", "told"),
    [
        (1, 0, "1 record skipped: 1 unusable (the run has data.bad_lines=skip)"),
        (1200, 2, "1,202 records skipped: 1,200 unusable (the run has data.bad_lines=skip), 2 without text"),
        (0, 1, "1 record skipped: 1 without text"),
    ],
)
def test_skipped_records_are_counted_in_the_summary(capsys, unusable: int, empty: int, told: str):
    from types import SimpleNamespace

    from trainbook.cli.predict import _summarize

    inputs = SimpleNamespace(num_skipped=unusable)
    found = SimpleNamespace(inputs=inputs, num_skipped=unusable + empty, note="", metrics=lambda: {"accuracy": 0.5})
    found.remark, found.has_trained_on_it = lambda: None, False
    _summarize(found, 3, None)
    assert f"{told}\naccuracy" in capsys.readouterr().err


def test_the_answer_for_programs_counts_the_records_without_a_prediction(terminal):
    rows = [{"text": record(number)["text"], "label": record(number)["label"]} for number in range(20)]
    bad = [{"text": "", "label": "dry"}, {"text": "sun", "label": ""}]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows[:3], *bad]))
    model = ("model.type=bert", "num_hidden_layers=1", "hidden_size=16", "num_attention_heads=2")
    data = ("data.source=train.jsonl", "data.bad_lines=skip", "max_seq_length=24", "task=classify")
    Path("c.yaml").write_text("training: {max_steps: 2}\nbatch: {global_batch_size: 4}\n")
    terminal("train", "c.yaml", *model, *data, "--name", "counted", "--quiet")
    printed = terminal.json("predict", "counted", "new.jsonl", "--json")
    assert printed["skipped"] == sum("skipped" in each for each in printed["predictions"]) == 2
    written = terminal.json("predict", "counted", "new.jsonl", "--output", "out.jsonl", "--json")
    assert (written["predictions"], written["skipped"]) == (5, 2)
