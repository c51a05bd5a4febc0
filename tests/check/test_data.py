"""Data that would spoil a run: tokens without a row, texts on both sides, copies, unknown and cut tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.check.conftest import QUICK, failing, outcomes

from trainbook.check import CheckSubject, sample
from trainbook.check.sample import read_sample
from trainbook.data import build
from trainbook.errors import DataError
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


def test_texts_that_many_groups_share_are_to_be_removed_from_the_source(bench, make_text):
    texts = [make_text(9, seed=number % 40 + 1) for number in range(120)]
    rows = ({"text": text, "author": f"a{number % 31}"} for number, text in enumerate(texts))
    subject = bench.subject(f"data.source={bench.write('groups.jsonl', rows)}", "data.group_field=author")
    outcome = outcomes(subject, "overlap")["overlap"]
    assert outcome.status == "failed" and outcome.override is None
    assert outcome.remedy is not None and outcome.remedy.startswith("Keep one copy of each text in the source")


def test_validation_that_is_nearly_training_is_found(bench, make_text):
    texts = [make_text(60, seed=number + 1) for number in range(20)]
    source = bench.write("long.jsonl", ({"text": text} for text in texts))
    other = bench.write("nearly.jsonl", ({"text": text + " more"} for text in texts))
    subject = bench.subject(f"data.source={source}", f"data.validation={other}")
    assert failing(subject) == {"overlap"}
    assert "near-duplicates" in outcomes(subject, "overlap")["overlap"].cause


def test_one_copy_is_told_in_the_singular(bench, make_text):
    texts = [make_text(9, seed=number + 1) for number in range(60)]
    source = bench.write("copy.jsonl", ({"text": text} for text in [*texts, texts[0]]))
    outcome = outcomes(bench.subject(f"data.source={source}", "data.validation_ratio=0"), "duplicates")["duplicates"]
    assert (
        "1 of 61 training records (1.6%) is an exact duplicate, 0 of 61 (0.0%) are near-duplicates" in outcome.evidence
    )


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
    assert outcome.status == "remark" and outcome.override == "data.padding=bucketed"


def test_of_much_data_the_first_rows_are_read_and_that_is_said(bench, monkeypatch):
    monkeypatch.setattr(sample, "MOST_RECORDS", 100)
    subject = bench.subject(f"data.source={bench.records}")
    assert not subject.sample.is_whole
    found = outcomes(subject)
    assert "--full reads everything" in found["overlap"].evidence
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
    subject = CheckSubject.of(config, tmp_path / "work", full=full)
    assert (tmp_path / "cache").exists() is full
    assert {name for name in outcomes(subject, *QUICK)} == set(QUICK)


def conversations(make_text, lines_before: int) -> list[dict[str, Any]]:
    texts = [make_text(3 + lines_before, seed=number + 1) for number in range(80)]
    return [
        {"messages": [{"role": "user", "content": f"{number} {text}"}, {"role": "assistant", "content": text[:40]}]}
        for number, text in enumerate(texts)
    ]


@pytest.mark.parametrize(("lines_before", "longer"), [(0, False), (6, True)])
def test_answers_behind_long_questions_are_reached(bench, make_text, lines_before: int, longer: bool):
    source = bench.write("long-chat.jsonl", conversations(make_text, lines_before))
    asked = (f"data.source={source}", "training.task=chat", "data.samples=documents", "data.max_seq_length=2048")
    subject = bench.subject(*asked)
    assert (subject.config.data.max_seq_length > 64) is longer
    assert subject.config.data.max_seq_length < 2048, "and no longer than that takes"
    assert subject.data.train.num_samples >= 32
    found = outcomes(subject, "initial_loss", "shift", "gradients")
    assert {name: outcome.status for name, outcome in found.items()} == dict.fromkeys(found, "passed")


def test_tags_before_a_long_last_word_are_reached(bench):
    """Texts are cut at their beginning: the last 64 bytes lie within one word, whose tag stands at its first."""
    rows = [{"words": [f"w{row}", "is", "x" * 150], "tags": ["A", "B", "AB"[row % 2]]} for row in range(60)]
    asked = (f"data.source={bench.write('tags.jsonl', rows)}", "training.task=tag", "data.max_seq_length=512")
    subject = bench.subject(*asked, "data.truncation_side=left", kind="bert")
    assert subject.config.data.max_seq_length == 256
    assert outcomes(subject, "initial_loss")["initial_loss"].status == "passed"


def test_conversations_without_anything_to_learn_at_the_length_asked_for_are_refused(bench, make_text):
    source = bench.write("too-long-chat.jsonl", conversations(make_text, lines_before=20))
    asked = (f"data.source={source}", "training.task=chat", "data.samples=documents", "data.max_seq_length=96")
    with pytest.raises(DataError, match="a target in its first 96 positions"):
        bench.subject(*asked)


def test_what_is_wrong_with_the_data_is_told_by_its_own_name(bench):
    source = bench.write("one-label.jsonl", [{"text": f"this is text {row}", "label": "A"} for row in range(40)])
    with pytest.raises(DataError, match=r"one-label\.jsonl' must have at least 2 classes"):
        bench.subject(f"data.source={source}", "training.task=classify", kind="bert")


@pytest.mark.parametrize("kind", ["char", "word"])
def test_a_character_or_word_that_the_shown_rows_do_not_have_is_not_unknown(bench, make_text, monkeypatch, kind: str):
    """A run makes its tokenizer of all of the text."""
    monkeypatch.setattr(sample, "KEPT_RECORDS", 20)
    rows = [{"text": make_text(4, seed=number + 1) + f" {chr(0x4E00 + number)} once"} for number in range(60)]
    asked = (f"data.source={bench.write('rare.jsonl', rows)}", f"data.tokenizer={kind}", "model.vocab_multiple=1")
    found = outcomes(bench.subject(*asked), "token_rates")["token_rates"]
    assert found.status == "passed" and found.numbers["unknown_share"] == 0


def test_lengths_are_counted_with_as_many_tokens_as_were_asked_for(bench):
    """With fewer, a text is longer: more of it would seem to be cut off."""
    letters = np.random.default_rng(0).choice(list("abcdefghijklmnopqrstuvwxyz"), (300, 8))
    words = ["".join(word) for word in letters]  # 8 tokens each, unless there is one for all of it
    rows = [
        {"text": " ".join(words[(7 * row + 11 * place) % 300] for place in range(40)), "label": "ab"[row % 2]}
        for row in range(60)
    ]
    source = f"data.source={bench.write('bpe.jsonl', rows)}"

    def status(tokens: int) -> str:
        asked = ("data.tokenizer=bpe", f"data.vocab_size={tokens}", "data.max_seq_length=64")
        subject = bench.subject(source, *asked, kind="classify")
        assert subject.config.data.vocab_size == min(tokens, 512)
        return outcomes(subject, "token_rates")["token_rates"].status

    assert (status(4096), status(512)) == ("passed", "failed")  # 40 words of one token each are within 64
