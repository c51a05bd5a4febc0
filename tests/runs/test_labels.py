from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainbook.errors import UserError
from trainbook.runs.labels import FILE, Labels, ReadLabels, change_labels, read_labels


def test_labels_are_read_back_and_none_are_no_error(tmp_path: Path):
    assert read_labels(tmp_path) == ReadLabels(Labels(), "", None)
    change_labels(tmp_path, add=["good", "Good", "  paper   2 "], note="a\r\nnote ", archived=True)
    found = read_labels(tmp_path)
    assert found.labels == Labels(("good", "paper 2"), "a\nnote", True) and not found.notice
    assert json.loads((tmp_path / FILE).read_text())["schema_version"] == 1
    changed = change_labels(tmp_path, add=["new"], remove=["GOOD", "unknown"], archived=False)
    assert changed == Labels(("paper 2", "new"), "a\nnote", False)
    assert os.listdir(tmp_path) == [FILE]


def test_the_stamp_tells_of_a_change_and_nothing_is_written_without_one(tmp_path: Path):
    change_labels(tmp_path, add=["good"])
    first = read_labels(tmp_path).stamp
    change_labels(tmp_path, add=["good"], remove=["bad"])
    assert read_labels(tmp_path).stamp == first
    change_labels(tmp_path, note="x")
    assert read_labels(tmp_path).stamp != first


@pytest.mark.parametrize(
    ("content", "law"),
    [
        ("{", "Expecting"),
        ("[]", "it must be an object"),
        ('{"tags": 3}', "tags must be a list"),
        ('{"tags": [1]}', "tags must be a list"),
        ('{"tags": ["\\u001b[31m"]}', "a tag must have 1 to 50 characters"),
        ('{"archived": 1}', "archived true or false"),
        ('{"note": ["x"]}', "note must be a string"),
        ('{"note": "' + "x" * 20_000 + '"}', "at most 10,000 characters"),
        ("[" * 9_999, "nested at most 100 deep"),
        ("x" * 200_000, "must have at most 131,072 bytes"),
        ("\xff\xfe", ""),
    ],
)
def test_a_damaged_file_is_a_notice_and_is_kept_aside_by_the_next_change(tmp_path: Path, content: str, law: str):
    (tmp_path / FILE).write_bytes(content.encode("latin-1"))
    found = read_labels(tmp_path)
    assert found.labels == Labels() and law in found.notice and str(tmp_path / FILE) in found.notice
    assert found.stamp is not None and len(found.notice) < 600
    assert change_labels(tmp_path, add=["x"]) == Labels(("x",))
    assert read_labels(tmp_path).labels.tags == ("x",)
    assert (tmp_path / f"{FILE}.unreadable").read_bytes() == content.encode("latin-1")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_neither_read_nor_written_through(tmp_path: Path, kind: str):
    run, other = tmp_path / "run", tmp_path / "other.json"
    run.mkdir()
    other.write_text('{"tags": ["secret"]}')
    path = run / FILE
    if kind == "link":
        path.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert read_labels(run).labels == Labels() and read_labels(run).notice
    change_labels(run, add=["x"])
    assert read_labels(run).labels.tags == ("x",) and other.read_text() == '{"tags": ["secret"]}'


@pytest.mark.parametrize("tag", ["", "  ", "a,b", 'a"b', "x" * 51, "\x1b[31m", "\u202eabc", "\ud800"])
def test_what_cannot_be_a_tag_is_refused_and_nothing_is_written(tmp_path: Path, tag: str):
    with pytest.raises(UserError, match="a tag must have 1 to 50 characters"):
        change_labels(tmp_path, add=[tag])
    assert not os.listdir(tmp_path)


def test_markup_in_a_tag_or_note_is_text(tmp_path: Path):
    markup = "<script>alert(1)</script>"
    assert change_labels(tmp_path, add=[markup], note=markup) == Labels((markup,), markup)
    with pytest.raises(UserError, match="control characters"):
        change_labels(tmp_path, note="\x1b]0;x")
    with pytest.raises(UserError, match="at most 10,000"):
        change_labels(tmp_path, note="x" * 10_001)
    with pytest.raises(UserError, match="at most 50 tags"):
        change_labels(tmp_path, add=[f"t{number}" for number in range(51)])


def test_two_who_change_labels_at_once_both_do(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: change_labels(tmp_path, add=[f"t{number}"]), range(24)))
    assert len(read_labels(tmp_path).labels.tags) == 24 and os.listdir(tmp_path) == [FILE]
