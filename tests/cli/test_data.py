from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest


def write_jsonl(path: str, rows: list[dict[str, Any]]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def reviews(terminal, make_text):
    """A hundred and twenty texts of two classes, a validation file beside them, and a recipe that names both."""
    rows = [{"text": make_text(4 + number % 9, seed=number + 1), "label": "ab"[number % 2]} for number in range(120)]
    write_jsonl("reviews.jsonl", rows)
    write_jsonl(
        "valid.jsonl", [{"text": f"{row['text']} extra {number}", **row} for number, row in enumerate(rows[:30])]
    )
    Path("my.yaml").write_text(
        "model: {type: bert}\ndata: {source: reviews.jsonl, validation: valid.jsonl, label_field: label}\n"
    )
    return terminal


def test_a_source_is_described_for_a_task(reviews):
    text = reviews("data", "reviews.jsonl", "--task", "classify").stdout
    assert "Always predicting 'a'" in text and "Padding" in text and "Labels: 2 classes" in text
    assert "trainbook train" not in text  # there is no recipe to train


@pytest.mark.parametrize("arguments", [("--task", "regression"), ("training.task=regress",), ("task=regression",)])
def test_a_task_by_any_of_its_names_needs_no_model_to_be_named(terminal, make_text, arguments):
    write_jsonl("scores.jsonl", [{"text": make_text(4, seed=n + 1), "score": n / 10} for n in range(40)])
    assert terminal.json("data", "scores.jsonl", *arguments, "--json")["task"] == "regress"


@pytest.mark.parametrize("argument", ["data.label_field=score", "label_field=score"])
def test_a_label_that_is_named_means_classify_also_where_only_a_source_is(terminal, make_text, argument):
    write_jsonl("scores.jsonl", [{"text": make_text(4, seed=n + 1), "score": n % 2} for n in range(40)])
    assert terminal.json("data", "scores.jsonl", argument, "--json")["task"] == "classify"
    assert terminal.json("data", "scores.jsonl", argument, "task=regress", "--json")["task"] == "regress"


def test_a_recipe_is_described_and_the_advice_can_be_run(reviews):
    text = reviews("data", "my.yaml", "--block_size", "512", "lr=1e-3", "betas=[0.9,0.95]").stdout
    line = next(line for line in text.splitlines() if "trainbook train" in line)
    advised = shlex.split(line.split("trainbook train ")[1])
    # What was given stays, except where the advice is to change it.
    assert advised[:3] == ["my.yaml", "lr=1e-3", "betas=[0.9,0.95]"] and "data.max_seq_length=64" in advised
    reviews("train", *advised, "max_steps=1", "--dry-run")


def test_the_task_follows_from_the_recipe(reviews):
    answer = reviews.json("data", "my.yaml", "--json")
    assert answer["task"] == "classify" and answer["fields"] == {"text": "text", "label": "label"}
    assert answer["duplicates"]["between"]["exact"] == 30
    assert answer["findings"][0]["rule"] == "overlap"
    assert answer["sides"]["train"]["labels"]["counts"] == {"a": 60, "b": 60}


def test_plain_text_is_described_without_a_task(terminal):
    answer = terminal.json("data", "text.txt", "data.tokenizer=char", "--json")
    train, validation = answer["sides"]["train"], answer["sides"]["validation"]
    size = len(Path("text.txt").read_text())
    assert train["tokens"] + validation["tokens"] == size
    assert answer["padding"]["configured"] == "windows" and answer["task"] == "causal"


def test_lengths_are_those_that_training_would_see(reviews):
    """The same tokens a document as in the cache that training makes."""
    from trainbook.data import build
    from trainbook.knobs import load
    from trainbook.loop.build import request_of

    overrides = ["data.tokenizer=bpe", "data.vocab_size=300", "data.cache_dir=cache"]
    answer = reviews.json("data", "my.yaml", *overrides, "--json")
    config = load("my.yaml", overrides).config
    bundle = build(config.data, config.training.seed, request_of(config))
    assert bundle.train.documents is not None
    lengths = bundle.train.documents.lengths
    assert answer["sides"]["train"]["tokens"] == lengths.sum()
    assert answer["sides"]["train"]["lengths"]["max"] == lengths.max()
    assert answer["vocab_size"] == bundle.tokenizer.vocab_size


def test_a_limit_makes_a_sample(reviews):
    answer = reviews.json("data", "my.yaml", "--limit", "40", "--json")
    train = answer["sides"]["train"]
    assert (train["documents"], train["sampled_documents"], train["tokens_estimated"]) == (120, 40, True)
    assert "random sample of 40 of 120" in " ".join(reviews("data", "my.yaml", "--limit", "40").stdout.split())


def test_a_picture_is_drawn(reviews):
    answer = reviews("data", "my.yaml", "--picture", "data.png", "--json")
    assert Path("data.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(answer.stdout)["task"] == "classify" and "data.png" in answer.stderr


def test_nothing_is_left_behind(reviews):
    before = sorted(Path().iterdir())
    reviews("data", "my.yaml")
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.txt",), "does not exist"),
        (("nowhere.yaml",), "no such file"),
        (("text.txt", "--task", "clasify"), "Did you mean 'classify'?"),
        (("text.txt", "--task", "classify"), "plain text"),
        (("text.txt", "data.tokenizer=bpee"), "Did you mean bpe?"),
        (("text.txt", "max_seq_length=0"), "must be"),
        (("text.txt", "--picture", "data.gif"), "must end in"),
        (("reviews.jsonl", "--task", "tag"), "data.text_field"),
    ],
)
def test_a_mistake_is_a_message(reviews, arguments, message: str):
    answer = reviews("data", *arguments, code=2)
    assert message in answer.stderr and answer.stdout == ""


def test_ctrl_c_ends_cleanly(reviews, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*arguments: Any, **others: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainbook.data.report.build.gather", interrupted)
    answer = reviews("data", "my.yaml", code=130)
    assert "interrupted: nothing was written" in answer.stderr and answer.stdout == ""


def test_help_has_two_examples(terminal):
    text = terminal("data", "--help").stdout
    assert text.count("trainbook data ") >= 2 and "Examples" in text


def test_a_messy_file_is_reported_on_and_its_unreadable_rows_are_named(terminal, make_text):
    texts = [" ".join(make_text(6, seed=number + 1).split()).replace(",", "") for number in range(60)]
    rows = [f"{text},{'ab'[number % 2]}" for number, text in enumerate(texts)]
    for number in (4, 20, 33):
        rows[number] = "no label here,"
    rows[40] = "one,two,three"
    rows[50] = rows[50][:-1] + "A"
    Path("messy.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    answer = terminal.json("data", "messy.csv", "--task", "classify", "--json")
    empty, cells = answer["sides"]["train"]["bad_reasons"]
    assert empty["places"] == ["messy.csv:6", "messy.csv:22", "messy.csv:35"] and empty["reason"].endswith(
        "but got ''."
    )
    assert cells["places"] == ["messy.csv:42"] and cells["reason"].startswith("must have 2 cells")
    first = answer["findings"][0]
    assert (first["rule"], first["severity"], first["override"]) == ("bad", "error", "data.bad_lines=skip")
    assert first["text"].startswith(
        "4 records cannot be used: training would stop at the first. messy.csv:6: the field"
    )
    told = " ".join(terminal("data", "messy.csv", "--task", "classify", "data.bad_lines=skip").stdout.split())
    assert "4 records cannot be used and will be skipped. messy.csv:6: the field 'label'" in told
    assert "unusable: messy.csv:6, messy.csv:22, messy.csv:35: the field" in told
    assert "Classes differ only in capitals, spaces or hyphens: 'a' (26) and 'A' (1)." in told


def test_a_source_without_a_readable_record_says_why(terminal):
    Path("none.csv").write_text("text,label\n" + "good,\n" * 5)
    told = terminal("data", "none.csv", "--task", "classify", code=2).output
    assert "all of its 5 records were skipped, the first one because none.csv:2: the field 'label' must be" in told


def test_the_remedy_for_a_file_in_another_encoding_is_to_convert_it_and_never_to_skip(terminal):
    rows = [f"the film number {number} of {number * 7} was fine,{'ab'[number % 2]}" for number in range(20)]
    rows += [f"caf{chr(0xE0 + number)} {number} and more,{'ab'[number % 2]}" for number in range(20)]
    Path("latin.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="latin-1")
    answer = terminal.json("data", "latin.csv", "--task", "classify", "--json")
    (reason,) = answer["sides"]["train"]["bad_reasons"]
    assert reason["records"] == 20
    first = answer["findings"][0]
    assert (first["rule"], first["severity"], first["override"]) == ("not_utf8", "error", None)
    assert first["text"] == (
        "20 records (50.0%) are not UTF-8 text, such as latin.csv:22. Convert the file first, for example from "
        "Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 'latin.csv' > 'latin-utf8.csv'"
    )
    assert not any("bad_lines" in (finding["override"] or "") for finding in answer["findings"])
    told = terminal("data", "latin.csv", "--task", "classify").stdout
    assert told.count("unusable: ") == 1


def test_of_a_compressed_file_the_command_reads_what_is_inside():
    from trainbook.data.sources.files import conversion

    assert conversion("WINDOWS-1252", "a/b.csv.gz") == (
        "gzip -dc 'a/b.csv.gz' | iconv -f WINDOWS-1252 -t UTF-8 > 'a/b-utf8.csv'"
    )


def test_a_label_that_is_not_used_is_told(terminal: Any) -> None:
    Path("labelled.csv").write_text("text,label\n" + "".join(f"some words {n},{n % 2}\n" for n in range(50)))
    shown = " ".join(terminal("data", "labelled.csv").stdout.split())
    assert "The column 'label' is ignored" in shown and "--task classify" in shown
    assert "is ignored" not in terminal("data", "labelled.csv", "--task", "classify").stdout
