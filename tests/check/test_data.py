"""Data that would spoil a run: tokens without a row, texts on both sides, copies, unknown and cut tokens."""

from __future__ import annotations

import numpy as np
import pytest
from tests.check.conftest import QUICK, failing, outcomes

from trainbook.check import Subject, sample
from trainbook.check.sample import read_sample
from trainbook.data import build
from trainbook.loop.build import request_of


def test_a_token_without_a_row_is_found_and_nothing_is_computed_with_it(bench):
    subject = bench.subject("model.vocab_multiple=512")  # a row that exists for speed only is no token's
    tokens = np.array(subject.data.train.tokens)
    tokens[5] = 257
    subject.data.train.tokens = tokens
    found = outcomes(subject)
    assert {name for name, outcome in found.items() if outcome.status == "failed"} == {"token_ids"}
    assert found["token_ids"].numbers["highest"] == 257
    assert found["causal_leak"].status == "skipped" and "token_ids failed" in found["causal_leak"].evidence


def test_an_embedding_with_too_few_rows_is_found(bench):
    subject = bench.subject()
    subject.task.body.token_embedding.num_embeddings = 100
    outcome = outcomes(subject, "token_ids")["token_ids"]
    assert outcome.status == "failed" and "smaller vocabulary" in outcome.cause


def test_validation_that_is_training_is_found(bench):
    subject = bench.subject(f"data.source={bench.records}", f"data.validation={bench.records}")
    assert failing(subject) == {"overlap"}
    outcome = outcomes(subject, "overlap")["overlap"]
    assert outcome.numbers["share"] == 1.0 and outcome.override == "data.validation=none data.validation_ratio=0.1"
    assert "records.jsonl:1 is also" in outcome.evidence


def test_validation_that_is_nearly_training_is_found(bench, make_text):
    texts = [make_text(60, seed=number + 1) for number in range(20)]
    source = bench.write("long.jsonl", ({"text": text} for text in texts))
    other = bench.write("nearly.jsonl", ({"text": text + " more"} for text in texts))
    subject = bench.subject(f"data.source={source}", f"data.validation={other}")
    assert failing(subject) == {"overlap"}
    assert "nearly the same" in outcomes(subject, "overlap")["overlap"].cause


def test_nothing_held_out_is_nothing_to_compare(bench):
    assert outcomes(bench.subject("data.validation_ratio=0"), "overlap")["overlap"].status == "skipped"


def test_copies_are_found(bench, make_text):
    texts = [make_text(9, seed=number % 20 + 1) for number in range(60)]
    source = bench.write("copies.jsonl", ({"text": text} for text in texts))
    subject = bench.subject(f"data.source={source}")
    assert failing(subject) == {"duplicates"}
    assert outcomes(subject, "duplicates")["duplicates"].numbers["share"] > 0.5


def test_the_same_text_with_another_target_is_no_copy(bench):
    rows = ({"text": f"word {number // 2}", "target": str(number)} for number in range(80))
    subject = bench.subject(f"data.source={bench.write('pairs.jsonl', rows)}", kind="seq2seq")
    assert outcomes(subject, "duplicates")["duplicates"].numbers["exact"] == 0


def test_short_texts_that_are_alike_by_chance_are_no_copies(bench):
    rows = ({"text": f"{one} plus {two}", "target": str(one + two)} for one in range(9) for two in range(9))
    found = outcomes(bench.subject(f"data.source={bench.write('sums.jsonl', rows)}", kind="seq2seq"))
    assert found["duplicates"].status == "passed" and found["overlap"].status == "passed"


def test_texts_that_are_mostly_cut_off_are_found(bench, make_text):
    rows = ({"text": make_text(40, seed=number + 1)} for number in range(60))
    subject = bench.subject(f"data.source={bench.write('cut.jsonl', rows)}", "data.samples=documents")
    assert failing(subject) == {"token_rates"}
    outcome = outcomes(subject, "token_rates")["token_rates"]
    assert outcome.numbers["cut_share"] > 0.5 and outcome.override == "data.max_seq_length=256"


def test_unknown_tokens_are_found(bench, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = {"[UNK]": 0, "</s>": 1, "alpha": 2, "beta": 3, "the": 4}
    library = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    library.pre_tokenizer = Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    subject = bench.subject(f"data.tokenizer={tmp_path / 'tokenizer.json'}")
    outcome = outcomes(subject, "token_rates")["token_rates"]
    assert outcome.status == "failed" and outcome.numbers["unknown_share"] > 0.3
    assert outcome.override == "data.tokenizer=bpe"


def test_padding_that_wastes_most_of_a_batch_is_found(bench, make_text):
    rows = [{"text": make_text(30 if number % 8 == 0 else 1, seed=number + 1)} for number in range(160)]
    source = bench.write("uneven.jsonl", rows)
    overrides = (f"data.source={source}", "data.samples=documents", "data.max_seq_length=256")
    outcome = outcomes(bench.subject(*overrides, "batch.global_batch_size=16"), "token_rates")["token_rates"]
    assert outcome.status == "failed" and outcome.override == "data.padding=bucketed"


def test_of_much_data_the_first_rows_are_read_and_that_is_said(bench, monkeypatch):
    monkeypatch.setattr(sample, "MOST_RECORDS", 100)
    subject = bench.subject(f"data.source={bench.records}")
    assert not subject.sample.is_whole
    found = outcomes(subject)
    assert "--full reads all" in found["overlap"].evidence
    assert {name for name, outcome in found.items() if outcome.status == "failed"} == set()


def test_what_is_read_is_divided_as_training_divides_it(bench, tmp_path):
    config = bench.config(f"data.source={bench.records}", "data.samples=documents", f"data.cache_dir={tmp_path}")
    sides = read_sample(config, request_of(config), None).sides
    trained = build(config.data, config.training.seed, request_of(config)).summary
    for name, side in sides.items():
        assert trained[name]["documents"] == side.num_documents


@pytest.mark.parametrize("full", [False, True])
def test_the_cache_of_training_is_used_only_when_all_data_is_prepared(bench, tmp_path, full):
    config = bench.config(f"data.cache_dir={tmp_path / 'cache'}")
    (tmp_path / "work").mkdir()
    subject = Subject.of(config, tmp_path / "work", full=full)
    assert (tmp_path / "cache").exists() is full
    assert {name for name in outcomes(subject, *QUICK)} == set(QUICK)
