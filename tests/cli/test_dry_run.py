"""What a dry run checks is what it says that it checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TINY = ("model.num_hidden_layers=1", "model.hidden_size=16", "data.max_seq_length=16", "training.max_steps=8")
CLASSIFY = ("train", "bert-tiny", "training.task=classify", "data.source=rows.jsonl", "data.cache_dir=cache", *TINY)

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"}


def rows(*records: object) -> None:
    Path("rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_it_finds_the_columns_and_names_what_it_did_not_check(terminal):
    rows(*({"text": f"row {number}", "label": number % 2} for number in range(300)))
    shown = " ".join(terminal(*CLASSIFY, "--dry-run").stdout.split())
    assert "data.source, rows.jsonl: the first 100 records, with text in 'text', label in 'label'" in shown
    assert "Not checked" in shown and "the rest of the data" in shown
    answer = json.loads(terminal(*CLASSIFY, "--dry-run", "--json").stdout)
    assert len(answer["checked"]) == 4 and len(answer["not_checked"]) == 3
    assert not Path("runs").exists() and not Path("cache").exists()


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"text": "one"}, {"text": "two"}], "label"),
        ([], "has no text to train on"),
    ],
)
def test_what_training_would_refuse_in_the_first_records_is_refused(terminal, records, message):
    rows(*records)
    refused = terminal(*CLASSIFY, "--dry-run", code=2).stderr
    assert message in refused
    assert not Path("runs").exists()


def test_a_text_where_records_are_needed_is_refused(terminal):
    assert "is plain text" in terminal(*CLASSIFY[:3], "data.source=text.txt", "--dry-run", code=2).stderr


def test_a_binary_file_is_refused(terminal):
    Path("text.txt").write_bytes(bytes(range(256)) * 40)
    assert "text.txt" in terminal.train("--dry-run", code=2).stderr


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}, "is not a tokenizer.json of the tokenizers package"),
        (WORDS, "the task needs a token for the role 'pad'"),
    ],
    ids=["unreadable", "a token that the task needs"],
)
def test_a_tokenizer_that_training_would_refuse_is_refused(terminal, model, message):
    Path("words.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    asked = ("data.source=text.txt", "data.tokenizer=words.json", *TINY)
    told = terminal("train", "bert-tiny", *asked, "--dry-run", code=2)
    assert message in " ".join(told.stderr.split())


def test_a_folder_that_cannot_be_made_is_refused(terminal):
    Path("runs").write_text("a file")
    assert "runs" in terminal.train("--dry-run", code=2).stderr
    assert Path("runs").read_text() == "a file"


@pytest.mark.parametrize("name", ["../x", "x/y", "a b ", ".hidden"])
def test_a_name_that_training_refuses_is_refused(terminal, name):
    told = terminal.train("--dry-run", "--name", name, code=2).stderr
    assert told == terminal.train("--name", name, code=2).stderr
    assert "a run's name must begin" in told
    assert not Path("runs").exists() and not Path("../x").exists()


def test_a_folder_is_tried_and_taken_away(terminal):
    shown = terminal.train("--dry-run", "--runs-dir", "a/b", "--name", "c").stdout
    assert "a/b/c can be created" in " ".join(shown.split())
    assert not Path("a").exists()
    Path("a").mkdir()
    terminal.train("--dry-run", "--runs-dir", "a/b", "--name", "c")
    assert list(Path("a").iterdir()) == []


def test_a_run_that_cannot_be_resumed_so_is_refused(terminal):
    terminal.train("--name", "first", "--quiet")
    shown = terminal.train("--name", "first", "--dry-run").stdout
    assert "holds a run that can be resumed" in " ".join(shown.split())
    refused = terminal.train("--name", "first", "model.norm=rmsnorm", "--dry-run", code=2).stderr
    assert "was started with another configuration" in refused
    assert "--resume is never" in terminal.train("--name", "first", "--resume", "never", "--dry-run", code=2).stderr


def test_a_vocabulary_that_is_only_assumed_is_named(terminal: Any) -> None:
    def notes(*overrides: str) -> str:
        return " ".join(terminal.json("train", *terminal.tiny, *overrides, "--dry-run", "--json")["plan"]["notes"])

    assert "the vocabulary is assumed to have 4,096 tokens, the default of data.vocab_size" in notes(
        "data.tokenizer=bpe"
    )
    assert "vocabulary" not in notes("data.tokenizer=bpe", "data.vocab_size=300")
    assert "vocabulary" not in notes("data.tokenizer=byte")


def test_a_tokenizer_that_may_not_be_the_pretrained_models_is_not_said_to_be_checked(terminal: Any) -> None:
    terminal.train("--name", "first", "--quiet")
    tune = ("train", "tune.yaml", "--dry-run", "--json")
    given = "{model: {pretrained: runs/first}, data: {source: text.txt}, training: {max_steps: 4}}"
    Path("tune.yaml").write_text(given)
    own, other = terminal.json(*tune), terminal.json(*tune, "data.tokenizer=char")
    assert any("the tokenizer, " in line for line in own["checked"]) and len(own["not_checked"]) == 3
    assert not any("the tokenizer" in line for line in other["checked"])
    assert other["not_checked"][0] == (
        "the tokenizer: training refuses data.tokenizer=char unless its tokens are those of runs/first, whose own "
        "tokenizer is used if data.tokenizer is omitted"
    )


def test_it_counts_the_labels_that_it_reads_and_the_texts_that_are_too_long(terminal: Any) -> None:
    rows(*({"text": "long " * (number % 2 * 9 + 1), "label": "abc"[number % 3]} for number in range(300)))
    shown = " ".join(terminal(*CLASSIFY, "--dry-run").stdout.split())
    assert "labels are assumed" not in shown and "--num-labels" not in shown
    assert "50 of them have more than data.max_seq_length=16 tokens and are truncated" in shown
    plan = json.loads(terminal(*CLASSIFY, "--dry-run", "--json").stdout)["plan"]
    assert not any("assumed" in note for note in plan["notes"])
