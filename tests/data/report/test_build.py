from __future__ import annotations

import numpy as np
import pytest

from trainbook.data.samples.frame import Frame
from trainbook.data.sources.records import Document
from trainbook.data.tokenizers import ByteTokenizer
from trainbook.runs.jsonl import dumps


def test_sizes_are_counted(report_of):
    train = report_of(["abc", "défg"], ["xy"])["sides"]["train"]
    assert (train["documents"], train["characters"], train["bytes"], train["tokens"]) == (2, 7, 8, 8)
    assert train["tokens_per_byte"] == 1 and train["tokens_estimated"] is False


def test_tokens_of_a_sample_are_extrapolated_and_called_estimated(report_of):
    train = report_of(["abcd"] * 40, None, limit=10)["sides"]["train"]
    assert train["tokens"] == 160 and train["tokens_estimated"] and train["sampled_documents"] == 10


def test_lengths_are_judged_in_positions_not_in_tokens(report_of):
    plain = report_of(["x" * 32] * 10)["lengths"]
    framed = report_of(["x" * 32] * 10, frame=Frame(256, prefix=(1,), suffix=(2,)))["lengths"]
    causal = report_of(["x" * 33] * 10, frame=Frame(256, shift=1))["lengths"]
    assert (plain["recommended"], framed["recommended"], causal["recommended"]) == (32, 64, 32)
    assert [row["length"] for row in framed["by_length"]] == [64, 128, 256, 512, 1024, 2048, 4096]


def test_copies_on_both_sides_are_found(report_of, texts):
    train, validation = texts(30, 1), texts(10, 2)
    long = " ".join(f"unlike{number}" for number in range(60))
    near = " ".join(f"another{number}" for number in range(60))
    facts = report_of([*train, train[0], long, near, f"{near} end"], [*validation, train[3], f"{long} end"])[
        "duplicates"
    ]
    assert facts["train"]["exact"] == 1 and facts["between"]["exact"] == 1
    assert facts["between"]["exact_share"] == 1 / 12
    assert facts["between"]["near"] == 1 and facts["train"]["near"] == 1 and facts["validation"]["near"] == 0
    (example,) = facts["between"]["near_examples"]
    assert (example["one"], example["other"]) == ("file:31", "file:11") and example["jaccard"] > 0.95
    assert example["similarity"] <= 0.99 and example["one_text"] != example["other_text"]
    assert facts["between"]["exact_examples"] == [{"one": "file:3", "other": "file:10"}]


def test_repeats_are_shown_with_their_place(report_of, texts):
    facts = report_of([*texts(5, 1), "Contents " + "." * 300])["sides"]["train"]["repeats"]
    assert facts["documents"] == 1
    (example,) = facts["examples"]
    assert example["place"] == "file:5" and example["position"] == 9
    assert (example["period"], example["repetitions"]) == (1, 300)
    assert example["excerpt"].startswith("Contents ...")


def test_unknown_tokens_are_counted_only_where_the_tokenizer_has_some(report_of):
    class Forgetful(ByteTokenizer):
        def special(self, role: str) -> int | None:
            return ord("a") if role == "unknown" else super().special(role)

    assert report_of(["banana"])["sides"]["train"]["unknown_share"] is None
    assert report_of(["banana"], tokenizer=Forgetful())["sides"]["train"]["unknown_share"] == 0.5


def test_targets_are_judged_too(report_of):
    documents = [Document("in", str(number), 0, target="x" * 300) for number in range(20)]
    facts = report_of(documents, None, "data.max_target_length=128", "model.type=t5", "training.task=seq2seq")
    assert facts["lengths"]["targets"]["recommended"] == 512
    assert facts["lengths"]["targets"]["tokens_kept"] == pytest.approx(128 / 300)
    assert facts["sides"]["train"]["target_lengths"]["max"] == 300


def test_without_validation_there_is_no_shift(report_of, texts):
    facts = report_of(texts(10, 1))
    assert facts["shift"] is None and facts["duplicates"]["between"] is None


def test_the_report_is_plain_values_with_stable_keys_and_the_same_each_time(report_of, texts):
    labelled = [Document(text, str(number), 0, label="ab"[number % 2]) for number, text in enumerate(texts(60, 1))]
    facts, again = (report_of(labelled, labelled[:30]) for _ in range(2))
    assert dumps(facts) == dumps(again)
    assert list(facts) == [
        *("source", "validation", "task", "tokenizer", "vocab_size", "fields", "unused_fields", "bad_lines"),
        *("filters", "findings", "sides", "giveaway", "lengths", "padding", "duplicates", "contradictions", "shift"),
    ]
    assert list(facts["shift"]) == ["length", "tokens", "labels", "domain", "histograms", "tests"]
    assert set(facts["findings"][0]) == {"rule", "severity", "text", "override"}
    assert not any(isinstance(value, np.generic) for value in facts["lengths"]["by_length"][0].values())


def test_one_empty_document_is_no_trouble(report_of):
    facts = report_of([""], [""])
    assert facts["sides"]["train"]["empty_documents"] == 1
