from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.data import BatchPlan, DataBundle
from trainbook.data.samples.quarantine import entry_of, find, open_quarantine, read_entries, write_entries
from trainbook.errors import DataError
from trainbook.runs import Manifest, RunFolder


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    return write_reviews(tmp_path / "reviews.jsonl", range(40))


def write_reviews(path: Path, numbers: Any) -> Path:
    path.write_text("".join(json.dumps({"text": f"Review {number}: ünïcode."}) + "\n" for number in numbers))
    return path


def entries_of(data: DataBundle, *ids: int, **more: Any) -> list[dict[str, Any]]:
    facts = {"step": 7, "reason": "its loss is 9", "loss": 9.0, **more}
    return [entry_of(data.train, sample, fingerprint=data.train_fingerprint, **facts) for sample in ids]


def line(**changes: Any) -> str:
    return json.dumps({"id": 3, "source": "a.txt:1", "text": "a", "data": "abc", **changes})


# The file


def test_an_entry_says_where_a_document_is_and_why_it_is_kept_out(build_from, reviews: Path) -> None:
    data = build_from(reviews, samples="documents", validation_ratio=0.0)
    (entry,) = entries_of(data, 3)
    assert entry == {
        "id": 3,
        "source": f"{reviews}:4",
        "text": "Review 3: ünïcode.",
        "step": 7,
        "reason": "its loss is 9",
        "loss": 9.0,
        "data": data.train_fingerprint,
    }


def test_an_entry_of_a_window_has_the_tokens_that_it_reads(build_from, folder: Path) -> None:
    data = build_from(folder, max_seq_length=16, validation_ratio=0.0)
    (entry,) = entries_of(data, 100)
    assert entry["range"] == [100, 116]
    assert entry["source"].startswith(f"{folder}/00.txt:") or "txt:" in entry["source"]
    assert entry["text"] and "target" not in entry


def test_the_target_of_a_pair_is_told_too(build_from, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"input": f"in {n}", "target": f"out {n}"}) + "\n" for n in range(20)))
    data = build_from(pairs, records="pairs", validation_ratio=0.0)
    assert entries_of(data, 5)[0]["target"] == "out 5"


@pytest.mark.parametrize("loss", [9.25, math.nan, math.inf, None])
def test_what_is_written_is_read_again(tmp_path: Path, build_from, reviews: Path, loss: float | None) -> None:
    data = build_from(reviews, samples="documents", validation_ratio=0.0)
    entries, path = entries_of(data, 3, 5, loss=loss), tmp_path / "quarantine.jsonl"
    write_entries(path, entries)
    read = read_entries(path)
    for one, other in zip(entries, read, strict=True):
        assert {**one, "loss": None} == {**other, "loss": None}
        assert other["loss"] is None if loss is None else float(other["loss"]) == pytest.approx(loss, nan_ok=True)
    write_entries(path, read)  # written again, nothing changes
    assert read_entries(path) == read
    write_entries(path, [])
    assert read_entries(path) == []


def test_a_text_that_looks_like_a_number_stays_a_text(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(line(text="NaN") + "\n")
    assert read_entries(tmp_path / "q.jsonl")[0]["text"] == "NaN"


def test_a_name_that_is_no_text_can_be_written(build_from, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    for number in range(12):
        (folder / f"bad-\udcff-{number}.txt").write_text(f"Text {number}.")
    data = build_from(folder, samples="documents", validation_ratio=0.0)
    write_entries(tmp_path / "q.jsonl", entries_of(data, 2))
    (entry,) = read_entries(tmp_path / "q.jsonl")
    assert "bad-\\udcff-" in entry["source"]
    other = {**entry, "data": "of other data"}
    assert find([other], data.train, data.train_fingerprint, tmp_path / "q.jsonl").ids.tolist() == [2]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("{", "must be one JSON object per line, but got '{'"),
        ("[1]", "must be a JSON object, but got '[1]'"),
        (line(id=-1), "'id' must be an integer >= 0, but got -1"),
        (line(id="x"), "'id' must be an integer >= 0, but got \"x\""),
        (line(id=True), "'id' must be an integer >= 0, but got true"),
        ('{"id": 1, "data": "a"}', "'source' must be a string: where the sample comes from, but it is missing"),
        (line(data=5), "'data' must be a string: the fingerprint of the data, but got 5"),
        (line(text=None), "'text' must be a string: how the sample begins, but got null"),
        (line(range=[5]), "'range' must be two integers: where a window begins and ends, but got [5]"),
        (line(range=[5, 5]), "'range' must be two integers: where a window begins and ends, but got [5, 5]"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path: Path, broken: str, message: str) -> None:
    path = tmp_path / "quarantine.jsonl"
    path.write_text(f"{line()}\n\n{broken}\n{line()}\n")
    with pytest.raises(DataError) as error:
        read_entries(path)
    assert str(error.value).startswith(f"{path}:3: {message}")


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"q\.jsonl cannot be read: it is not UTF-8 text"):
        read_entries(tmp_path / "q.jsonl")


def test_a_run_is_named_by_its_folder_its_name_or_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder.create("runs", "first")
    Manifest("first").write(run.manifest)
    assert open_quarantine("first") == (run.quarantine_file, [])  # it has kept out nothing
    run.quarantine_file.write_text(line() + "\n")
    for name in ("first", "runs/first", str(tmp_path / "runs" / "first"), "runs/first/quarantine.jsonl"):
        path, entries = open_quarantine(name)
        assert path.resolve() == run.quarantine_file.resolve() and [entry["id"] for entry in entries] == [3]
    with pytest.raises(DataError, match=r"'runs/frist' does not exist; .* Did you mean 'runs/first'\?"):
        open_quarantine("runs/frist")
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match=r"the folder 'other' is not a run and has no quarantine\.jsonl"):
        open_quarantine("other")


# Finding the samples again


def test_in_the_same_data_ids_are_what_they_were(build_from, tmp_path: Path, reviews: Path) -> None:
    data = build_from(reviews, samples="documents")
    entries = entries_of(data, 7, 2)
    for entry in entries:
        entry["source"], entry["text"] = "moved", "another"
    assert find(entries, data.train, data.train_fingerprint, tmp_path).ids.tolist() == [2, 7]


def test_validation_and_filters_do_not_change_what_an_id_means(build_from, tmp_path: Path, folder: Path) -> None:
    (folder / "zzz.txt").write_text("=" * 400)
    (tmp_path / "valid.txt").write_text("Other text.")
    plain = build_from(folder, validation_ratio=0.0)
    others = [
        build_from(folder, validation=str(tmp_path / "valid.txt")),
        build_from(folder, validation_ratio=0.0, repetition_filter=True),
    ]
    for other in others:
        assert other.train_fingerprint == plain.train_fingerprint
        assert other.fingerprint != plain.fingerprint
    assert build_from(folder, validation_ratio=0.5).train_fingerprint != plain.train_fingerprint


def test_in_other_data_documents_are_known_by_place_and_text(build_from, tmp_path: Path, reviews: Path) -> None:
    before = build_from(reviews, samples="documents", validation_ratio=0.0)
    entries = entries_of(before, 3, 30, 39)
    # Another tokenizer; the last lines are gone, and in place of line 31 there is another text.
    write_reviews(reviews, [*range(30), 99, *range(31, 35)])
    after = build_from(reviews, samples="documents", validation_ratio=0.0, tokenizer="char", max_seq_length=4)
    assert after.train_fingerprint != before.train_fingerprint
    found = find(entries, after.train, after.train_fingerprint, tmp_path / "q.jsonl")
    assert found.ids.tolist() == [3]
    assert found.missing == (f"{reviews}:31", f"{reviews}:40")


@pytest.mark.parametrize("side", ["left", "right"])
def test_documents_are_known_wherever_they_are_cut(build_from, tmp_path: Path, reviews: Path, side: str) -> None:
    """Bytes may be cut within a character."""
    before = build_from(reviews, samples="documents", max_seq_length=11, truncation_side=side, validation_ratio=0.0)
    after = build_from(reviews, samples="documents", max_seq_length=6, tokenizer="char", validation_ratio=0.0)
    (entry,) = entries_of(before, 12)
    assert "\ufffd" in entry["text"] or side == "left"
    assert find([entry], after.train, after.train_fingerprint, tmp_path).ids.tolist() == [12]


def test_finding_nothing_is_an_error_with_both_fingerprints(build_from, tmp_path: Path, reviews: Path) -> None:
    before = build_from(reviews, samples="documents", validation_ratio=0.0)
    entries = entries_of(before, 3)
    write_reviews(reviews, range(100, 140))
    after = build_from(reviews, samples="documents", validation_ratio=0.0)
    with pytest.raises(DataError) as error:
        find(entries, after.train, after.train_fingerprint, tmp_path / "q.jsonl")
    message = str(error.value)
    assert before.train_fingerprint[:12] in message and after.train_fingerprint[:12] in message
    assert "no document here has the same source and text" in message and f"such as {reviews}:4" in message


def test_windows_are_not_known_in_other_data(build_from, tmp_path: Path, folder: Path) -> None:
    before = build_from(folder, max_seq_length=16)
    after = build_from(folder, max_seq_length=16, tokenizer="char")
    with pytest.raises(DataError, match="a window is identified by its id") as error:
        find(entries_of(before, 5), after.train, after.train_fingerprint, tmp_path / "q.jsonl")
    assert before.train_fingerprint[:12] in str(error.value) and after.train_fingerprint[:12] in str(error.value)


def test_ids_of_windows_are_not_taken_for_documents_nor_the_other_way(build_from, tmp_path: Path, folder: Path) -> None:
    windows = build_from(folder, max_seq_length=16, validation_ratio=0.0)
    documents = build_from(folder, samples="documents", validation_ratio=0.0)
    assert windows.train_fingerprint == documents.train_fingerprint
    with pytest.raises(DataError, match=r"they are windows, .* samples are documents.*data\.samples=windows"):
        find(entries_of(windows, 5), documents.train, documents.train_fingerprint, tmp_path)
    with pytest.raises(DataError, match=r"they are documents, but this run's samples are windows"):
        find(entries_of(documents, 5), windows.train, windows.train_fingerprint, tmp_path)


@pytest.mark.parametrize("length", [4, 5, 16, 40])
def test_a_window_of_another_length_is_covered_by_those_of_now(
    build_from, tmp_path: Path, folder: Path, length: int
) -> None:
    """No token that the first run kept out is read by any window of any epoch."""
    before = build_from(folder, max_seq_length=16, validation_ratio=0.0)
    after = build_from(folder, max_seq_length=length, validation_ratio=0.0)
    ids = find(entries_of(before, 100), after.train, after.train_fingerprint, tmp_path).ids
    plan = BatchPlan(after.train, 32, 3, True)
    plan.keep_out(ids)
    read = np.concatenate([plan.batch(step).ids for step in range(4 * plan.steps_per_epoch)])
    assert not ((read < 116) & (read + length > 100)).any()
    if length <= 16:  # and no more is lost than windows that touch it
        begins, ends = after.train.extent(ids)
        assert (begins.min(), ends.max()) == (100, 116)


def test_an_id_beyond_the_data_is_an_error(build_from, tmp_path: Path, folder: Path) -> None:
    for knobs in ({"samples": "documents"}, {"max_seq_length": 16}):
        data = build_from(folder, **knobs)
        (entry,) = entries_of(data, 1)
        entry["id"] = 10**9
        if "range" in entry:
            entry["range"] = [10**9, 10**9 + 16]
        with pytest.raises(DataError, match=r"the data has no sample 1000000000 .* Was the file edited\?"):
            find([entry], data.train, data.train_fingerprint, tmp_path / "q.jsonl")


# The knob


def test_samples_of_an_earlier_run_are_kept_out_from_the_start(
    build_from: Callable[..., DataBundle], tmp_path: Path, reviews: Path
) -> None:
    plain = build_from(reviews, samples="documents")
    path = tmp_path / "quarantine.jsonl"
    write_entries(path, entries_of(plain, 3, 8))
    data = build_from(reviews, samples="documents", quarantine=str(path))
    assert (plain.kept_out.tolist(), data.kept_out.tolist()) == ([], [3, 8])
    assert data.kept_out.dtype == plain.kept_out.dtype == np.int64
    assert data.fingerprint == plain.fingerprint  # which samples are kept out is the run's own record
    assert data.summary["left_out"] == [f"by data.quarantine: 2 documents that {path} names"]
    assert data.summary["notices"] == plain.summary["left_out"] == []


def test_what_is_no_longer_there_is_said(build_from, tmp_path: Path, reviews: Path) -> None:
    plain = build_from(reviews, samples="documents", validation_ratio=0.0)
    path = tmp_path / "quarantine.jsonl"
    write_entries(path, entries_of(plain, 3, 38))
    write_reviews(reviews, range(30))
    data = build_from(reviews, samples="documents", validation_ratio=0.0, quarantine=str(path))
    assert data.kept_out.tolist() == [3]
    assert data.summary["notices"] == [
        f"data.quarantine: 1 of 2 samples in {path} are not in this data, such as {reviews}:39."
    ]


def test_a_run_that_kept_out_nothing_is_said(build_from, tmp_path: Path, reviews: Path) -> None:
    run = RunFolder.create(tmp_path, "first")
    Manifest("first").write(run.manifest)
    data = build_from(reviews, samples="documents", quarantine=str(run.path))
    assert data.kept_out.tolist() == [] and data.summary["left_out"] == []
    assert data.summary["notices"] == [f"data.quarantine has no effect: {run.path} excluded no sample."]
