"""What the knobs leave out of training, from a source to its batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from trainbook.data import BatchPlan, Request, open_records
from trainbook.data.samples.base import DocumentTable
from trainbook.data.samples.datasets import TokenDocuments, TokenWindows
from trainbook.data.samples.frame import Frame
from trainbook.errors import DataError
from trainbook.knobs.sections.data import DataKnobs


def text(number: int) -> str:
    return "".join(chr(97 + (number * 7 + place * place * 3 + place // 5) % 26) for place in range(120))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Fifty documents; every tenth has a repeat in its middle."""
    path = tmp_path / "texts.jsonl"
    rows = [text(number) + ("-" * 40 if number % 10 == 3 else "") + text(number + 50) for number in range(50)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return path


def repetitive(data) -> list[int]:
    return [number for number in range(50) if "-" * 32 in data.train.describe(number)["text"]]


# Repetition


def test_documents_with_a_repeat_are_no_samples(build_from, source: Path) -> None:
    knobs = {"samples": "documents", "validation_ratio": 0.0, "max_seq_length": 512}
    plain, data = build_from(source, **knobs), build_from(source, repetition_filter=True, **knobs)
    assert repetitive(plain) == [3, 13, 23, 33, 43]
    assert (plain.train.num_samples, plain.train.num_filtered) == (50, 0)
    assert (data.train.num_samples, data.train.num_filtered, data.train.num_left_out) == (45, 5, 0)
    plan = BatchPlan(data.train, 9, 5, True)
    seen = np.concatenate([plan.batch(step).ids for step in range(5)])
    assert sorted(seen.tolist()) == [number for number in range(50) if number % 10 != 3]
    assert data.summary["left_out"] == ["by data.repetition_filter: 5 of 50 documents"]
    assert plain.summary["left_out"] == []


def test_a_repeat_that_is_cut_off_does_no_harm(build_from, source: Path) -> None:
    knobs = {"samples": "documents", "validation_ratio": 0.0, "repetition_filter": True}
    filtered = {
        length: build_from(source, max_seq_length=length, **knobs).train.num_filtered for length in (120, 150, 151, 152)
    }
    assert filtered == {120: 0, 150: 0, 151: 5, 152: 5}  # 120 characters, and one token more than positions


def test_a_repeat_in_what_is_to_be_written_counts(tmp_path: Path, build_from) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [{"input": text(number), "target": "ab" * 32 if number == 4 else "ab" * 31} for number in range(9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = build_from(path, records="pairs", validation_ratio=0.0, repetition_filter=True)
    assert data.train.num_filtered == 1 and 4 not in data.train.ids(np.arange(8), np.zeros(8))


def test_no_window_that_touches_a_repeat_comes_in_any_epoch(build_from, source: Path) -> None:
    knobs = {"validation_ratio": 0.0, "max_seq_length": 32}
    plain, data = build_from(source, **knobs), build_from(source, repetition_filter=True, **knobs)
    tokens = np.asarray(data.train.tokens)
    dashes = np.flatnonzero(tokens == ord("-"))
    assert len(dashes) == 5 * 40
    before, after = (BatchPlan(bundle.train, 16, 5, True) for bundle in (plain, data))
    assert before.num_samples == after.num_samples
    counts = []
    for step in range(5 * after.steps_per_epoch):
        old, new = before.batch(step), after.batch(step)
        is_bad = np.array([((dashes >= start) & (dashes < start + 32)).any() for start in old.ids])
        assert not any(((dashes >= start) & (dashes < start + 32)).any() for start in new.ids)
        assert old.ids[~is_bad].tolist() == new.ids[~is_bad].tolist()
        counts.append(is_bad[old.epochs == 0].sum())
    assert sum(counts) == data.train.num_filtered > 5
    total = data.train.num_samples
    assert data.summary["left_out"] == [
        f"by data.repetition_filter: {data.train.num_filtered} of {total} windows of the first epoch"
    ]


def test_a_repeat_across_the_end_of_a_document_counts_for_windows_alone() -> None:
    """Where nothing lies between documents, a window reads on; a document ends."""
    tokens = np.concatenate([np.arange(100, 200), np.ones(40, dtype=int), np.arange(200, 300)])
    table = DocumentTable(np.array([0, 120]), np.array([120, 120]), np.ones(2, dtype=int), ["a", "b"])
    assert TokenDocuments(tokens, table, Frame(200), repetition_filter=True).num_filtered == 0
    assert TokenWindows(tokens, Frame(20), repetition_filter=True).num_filtered == 2


@pytest.mark.parametrize("knobs", [{"samples": "documents", "max_seq_length": 512}, {"max_seq_length": 32}])
@pytest.mark.parametrize("name", ["repetition_filter", "gopher_filter"])
def test_a_filter_is_part_of_the_fingerprint_where_it_leaves_something_out(
    build_from, tmp_path: Path, source: Path, knobs: dict, name: str
) -> None:
    plain = build_from(source, **knobs)
    data, again = (build_from(source, **{name: True}, **knobs) for _ in range(2))
    assert plain.fingerprint != data.fingerprint == again.fingerprint
    clean = tmp_path / "clean.jsonl"
    clean.write_text("".join(json.dumps({"text": text(number)}) + "\n" for number in range(30)))
    assert build_from(clean, **knobs).fingerprint == build_from(clean, **{name: True}, **knobs).fingerprint


def test_validation_text_is_never_filtered(tmp_path: Path, build_from, source: Path) -> None:
    for knobs in ({"validation": str(source)}, {"validation_ratio": 0.4}):
        for samples in ("documents", "windows"):
            plain = build_from(source, samples=samples, max_seq_length=512, **knobs)
            data = build_from(
                source, samples=samples, max_seq_length=512, repetition_filter=True, gopher_filter=True, **knobs
            )
            assert plain.validation is not None and data.validation is not None
            assert data.validation.num_samples == plain.validation.num_samples
            assert data.validation.num_filtered == 0 and len(data.validation.filtered) == 0
            assert np.array_equal(np.asarray(data.validation.tokens), np.asarray(plain.validation.tokens))


@pytest.mark.parametrize("samples", ["documents", "windows"])
def test_a_filter_that_leaves_nothing_is_an_error(tmp_path: Path, build_from, samples: str) -> None:
    (tmp_path / "all.txt").write_text("=" * 5000)
    with pytest.raises(DataError, match=r"data\.repetition_filter: every .* Nothing is left to train on"):
        build_from(tmp_path / "all.txt", samples=samples, repetition_filter=True, validation_ratio=0.0)
    (tmp_path / "lines.txt").write_text("home\nabout\n" * 50)
    with pytest.raises(DataError, match=r"data\.gopher_filter: nothing is left .* \(duplicate lines\)"):
        build_from(tmp_path / "lines.txt", samples=samples, gopher_filter=True, validation_ratio=0.0)


def test_what_a_loss_a_byte_is_does_not_depend_on_what_is_left_out(build_from, source: Path) -> None:
    knobs = {"samples": "documents", "validation_ratio": 0.0, "max_seq_length": 512}
    plain, data = build_from(source, **knobs), build_from(source, repetition_filter=True, **knobs)
    assert data.bytes_per_token == pytest.approx(plain.bytes_per_token, rel=1e-3)


# Gopher's rules


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    path = tmp_path / "pages.jsonl"
    menu = "home\nabout\ncontact\n"
    rows = [text(number) if number % 4 else menu * 3 + f"page {number}" for number in range(40)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("samples", ["documents", "windows"])
def test_pages_that_repeat_themselves_are_left_out_before_tokenizing(build_from, pages: Path, samples: str) -> None:
    plain = build_from(pages, samples=samples, validation_ratio=0.0, max_seq_length=64)
    data = build_from(pages, samples=samples, validation_ratio=0.0, max_seq_length=64, gopher_filter=True)
    assert plain.summary["train"]["documents"] == 40 and data.summary["train"]["documents"] == 30
    assert data.summary["left_out"] == ["by data.gopher_filter: 10 of 40 documents (duplicate lines: 10)"]
    assert b"home" not in bytes(np.asarray(data.train.tokens).astype(np.uint8))
    assert data.fingerprint != plain.fingerprint
    again = build_from(pages, samples=samples, validation_ratio=0.0, max_seq_length=64, gopher_filter=True)
    assert again.summary["cache_reused"] and again.summary["left_out"] == data.summary["left_out"]


def test_the_same_documents_are_held_out_with_a_filter_as_without(build_from, pages: Path) -> None:
    plain, data = (
        build_from(pages, samples="documents", validation_ratio=0.3, gopher_filter=gopher) for gopher in (False, True)
    )
    assert plain.validation is not None and data.validation is not None
    assert data.validation.num_samples == plain.validation.num_samples
    assert data.train.num_samples < plain.train.num_samples


def test_records_that_are_opened_are_those_that_are_trained_on(pages: Path) -> None:
    data = DataKnobs(source=str(pages), validation_ratio=0.0, gopher_filter=True)
    sides = open_records(data, Request(frame=lambda tokenizer: Frame(8)))
    for _ in range(2):
        assert [document.origin for document in sides.train()] == [f"pages.jsonl:{n + 1}" for n in range(40) if n % 4]


def test_the_rules_are_not_for_conversations(tmp_path: Path, build_from) -> None:
    path = tmp_path / "chats.jsonl"
    rows = [{"prompt": text(number), "response": text(number + 50)} for number in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"data\.gopher_filter: works on plain text, but the task reads conversations"):
        build_from(path, records="chat", gopher_filter=True)
    data = build_from(path, records="chat", repetition_filter=True)
    assert data.summary["left_out"] == [f"by data.repetition_filter: 0 of {data.train.num_samples} documents"]


def test_a_pair_goes_for_either_of_its_texts(tmp_path: Path, build_from) -> None:
    path, menu = tmp_path / "pairs.jsonl", "home\nabout\n" * 9
    rows = [{"input": text(number), "target": "a"} for number in range(9)]
    rows[3]["input"] = rows[5]["target"] = menu
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = build_from(path, records="pairs", validation_ratio=0.0, gopher_filter=True)
    assert data.train.num_samples == 7
