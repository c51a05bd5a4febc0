"""What is read, cut and left out is told before the first step, and a trained model reads what it was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

SMALL = (
    "model.num_hidden_layers=1",
    "model.hidden_size=16",
    "model.num_attention_heads=2",
    "data.max_seq_length=40",
    "data.cache_dir=cache",
    "batch.global_batch_size=4",
    "training.max_steps=2",
    "schedule.warmup_steps=1",
    "evaluation.eval_max_samples=6",
)
CLASSIFY = ("bert-tiny", *SMALL, "training.task=classify")
WORDS = ("sun", "rain", "wind", "snow", "fog")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments: str, code: int = 0) -> Result:
    from trainbook.cli.main import app

    answer = CliRunner().invoke(app, list(arguments))
    assert answer.exception is None or isinstance(answer.exception, SystemExit), repr(answer.exception)
    assert answer.exit_code == code, answer.output
    return answer


def told(label: str, *arguments: str) -> str:
    """What the first lines of a run say under this label."""
    lines = command("train", *arguments).stdout.splitlines()
    return "\n".join(line.split(maxsplit=1)[1] for line in lines if line.split()[:1] == [label])


def write(name: str, records: list[dict[str, Any]]) -> str:
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return f"data.source={name}"


def texts(count: int = 40) -> list[str]:
    return [f"{WORDS[number % 5]} {number}" for number in range(count)]


def labelled(text: str, label: str = "label", /, **more: str) -> list[dict[str, Any]]:
    return [{**more, text: value, label: "ab"[number % 2]} for number, value in enumerate(texts())]


# Fields


def test_predicting_reads_the_fields_of_training_although_others_have_better_names():
    command("train", *CLASSIFY, write("train.jsonl", labelled("remark", "sentiment")), "--name", "run", "--quiet")
    facts = json.loads(Path("runs/run/tokenizer/facts.json").read_text())
    assert facts["fields"] == {"label": "sentiment", "text": "remark"}
    write("new.jsonl", labelled("remark", "sentiment", text="something else", label="z"))
    answer = command("predict", "run", "new.jsonl")
    assert [json.loads(line)["text"] for line in answer.stdout.splitlines()] == texts()
    assert "accuracy" in answer.stderr and "from '" not in answer.stderr
    write("other.jsonl", labelled("comment", "label"))
    answer = command("predict", "run", "other.jsonl")
    assert answer.stderr.startswith(
        "text from 'comment': the file has no field 'remark', which the model was trained on\n"
        "label from 'label': the file has no field 'sentiment', which the model was trained on\n"
    )
    named = command("predict", "run", "other.jsonl", "--text-field", "comment", "--label-field", "label")
    assert named.stdout == answer.stdout and "from '" not in named.stderr


def test_a_run_that_kept_no_fields_still_predicts():
    command("train", *CLASSIFY, write("train.jsonl", labelled("remark")), "--name", "run", "--quiet")
    file = Path("runs/run/tokenizer/facts.json")
    facts = json.loads(file.read_text())
    del facts["fields"]
    file.write_text(json.dumps(facts))
    write("new.jsonl", labelled("remark"))
    assert "text from 'remark'\n" in command("predict", "run", "new.jsonl").stderr


def test_validation_reads_the_fields_of_training_and_others_are_told():
    train = write("train.jsonl", labelled("remark"))
    write("same.jsonl", labelled("remark", text="something else"))
    write("other.jsonl", labelled("comment"))
    assert told("task", *CLASSIFY, train, "data.validation=same.jsonl") == (
        "classify; label from 'label', text from 'remark'; 2 classes"
    )
    assert told("task", *CLASSIFY, train, "data.validation=other.jsonl") == (
        "classify; label from 'label', text from 'remark'; validation: text from 'comment'; 2 classes"
    )


def test_texts_beside_a_prompt_that_nobody_reads_are_told():
    records = [{"instruction": text, "context": "c", "response": "d", "category": "e", "id": "f"} for text in texts()]
    assert told("task", "gpt-tiny", *SMALL, "training.task=chat", write("dolly.jsonl", records)) == (
        "chat; context from 'context', prompt from 'instruction', response from 'response'; not used: 'category'"
    )


def test_knobs_that_do_nothing_are_told():
    Path("text.txt").write_text("a line of words\n" * 40)
    given = ("gpt-tiny", *SMALL, "data.source=text.txt", "data.text_field=body", "data.group_field=author")
    assert told("data", *given).endswith(
        "\ndata.text_field has no effect: text.txt is plain text, which has no fields."
        "\ndata.group_field has no effect: text.txt is plain text, which has no fields."
    )
    more = ("data.validation=text.txt", "data.validation_ratio=0.2")
    shown = command("train", *given, *more)
    remark = "data.validation_ratio: has no effect, because data.validation is set: all of data.source is trained on."
    assert remark in shown.output


# What is cut and left out


def test_conversations_without_an_answer_in_sight_are_told_of_both_sides():
    long = [{"prompt": "why " * 20 + text, "response": "so"} for text in texts()]
    write("validation.jsonl", [*long[:3], *({"prompt": f"{number}?", "response": "so"} for number in range(4))])
    records = [*long[:11], *({"prompt": text, "response": "so it is, and ever was"} for text in texts()[11:])]
    source = (write("train.jsonl", records), "data.validation=validation.jsonl")
    line = told("data", "gpt-tiny", *SMALL, "training.task=chat", *source)
    assert "; 11 of 40 conversations have no answer within 40 tokens and are left out; " in line
    assert "; 29 of 29 texts are longer than 40 tokens and are truncated; " in line
    assert line.endswith("; 3 of 7 conversations for validation have no answer within 40 tokens and are left out")


def test_cut_texts_and_targets_are_told_of_both_sides():
    pairs = [{"text": text, "target": "z" * (4 + number % 2 * 4)} for number, text in enumerate(texts())]
    write("validation.jsonl", [*pairs[:4], {"text": "a long text " * 9, "target": "z"}])
    given = ("t5-tiny", *SMALL, "training.task=seq2seq", "data.max_target_length=8", "data.validation=validation.jsonl")
    line = told("data", *given, write("train.jsonl", pairs))
    assert "; 20 of 40 targets are longer than 8 tokens and are truncated; " in line
    assert "; 1 of 5 texts for validation are longer than 40 tokens and are truncated; " in line
    assert line.endswith("; 2 of 5 targets for validation are longer than 8 tokens and are truncated")


# Going on from a run


def test_a_run_that_goes_on_from_another_writes_conversations_as_that_one_did():
    template = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{{ eos_token }}{% endfor %}"
    template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    Path("own.jinja").write_text(template)
    source = write("train.jsonl", [{"prompt": text, "response": "so"} for text in texts()])
    chat = ("gpt-tiny", *SMALL, "training.task=chat", source)
    command("train", *chat, "data.chat_template=own.jinja", "--name", "first", "--quiet")
    Path("own.jinja").unlink()
    command("train", *chat, "model.pretrained=runs/first", "--name", "second", "--quiet")
    assert json.loads(Path("runs/second/tokenizer/facts.json").read_text())["chat_template"] == template


# Predictions in place of what is read


@pytest.mark.parametrize("file", ["new", "new/one.jsonl", "new/*.jsonl"])
def test_predictions_do_not_go_into_a_file_that_is_read(file: str):
    Path("new").mkdir()
    command("train", *CLASSIFY, write("train.jsonl", labelled("text")), "--name", "run", "--quiet")
    write("new/one.jsonl", labelled("text"))
    before = Path("new/one.jsonl").read_bytes()
    Path("link.jsonl").symlink_to("new/one.jsonl")
    for output in ("new/one.jsonl", "new/../new/one.jsonl", "link.jsonl"):
        answer = command("predict", "run", file, "--output", output, code=2)
        assert answer.stderr == (f"error: --output: must not be an input file, but got {output}.\n")
    assert Path("new/one.jsonl").read_bytes() == before
    command("predict", "run", file, "--output", "new/out.json")
