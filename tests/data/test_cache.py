from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.data import DataBundle
from trainbook.data.prepare.cache import cache_root
from trainbook.data.prepare.cached import hash_stream
from trainbook.data.tokenizers import ByteTokenizer
from trainbook.errors import DataError

BuildFrom = Callable[..., DataBundle]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that the byte tokenizer was asked to encode."""
    texts: list[str] = []
    real = ByteTokenizer.encode_many

    def encode_many(self: ByteTokenizer, batch: list[str]) -> list:
        texts.extend(batch)
        return real(self, batch)

    monkeypatch.setattr(ByteTokenizer, "encode_many", encode_many)
    return texts


def test_text_is_tokenized_once_whatever_the_time_and_place_of_its_files(
    build_from: BuildFrom, folder: Path, tmp_path: Path, encoded: list[str]
) -> None:
    first = build_from(folder)
    assert len(encoded) == 30
    assert first.summary["cache_reused"] is False
    for file in folder.rglob("*.txt"):
        os.utime(file, (1, 1))
    moved = folder.rename(tmp_path / "elsewhere")
    again = build_from(moved, max_seq_length=32, shuffle=False)
    assert len(encoded) == 30
    assert again.summary["cache_reused"] is True
    assert again.fingerprint == first.fingerprint
    assert again.train.tokens[:].tobytes() == first.train.tokens[:].tobytes()
    assert again.train.describe(0)["source"].startswith(f"{moved}/")


@pytest.mark.parametrize(
    "change", [{"tokenizer": "char"}, {"validation_ratio": 0.3}, {"validation_ratio": 0.0}, {"validation": "other.txt"}]
)
def test_another_tokenizer_or_split_is_another_entry(
    build_from: BuildFrom, folder: Path, tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.txt").write_text("something else")
    monkeypatch.chdir(tmp_path)
    first = build_from(folder)
    second = build_from(folder, **change)
    assert first.summary["cache"] != second.summary["cache"]
    assert first.fingerprint != second.fingerprint


def test_changed_content_is_tokenized_again(build_from: BuildFrom, folder: Path, encoded: list[str]) -> None:
    first = build_from(folder)
    file = folder / "01.txt"
    file.write_text(file.read_text().replace("File", "Tile"))
    second = build_from(folder)
    assert len(encoded) > 30
    assert second.fingerprint != first.fingerprint


def test_changed_validation_text_is_tokenized_again(build_from: BuildFrom, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    fingerprints = set()
    for text in ("something else", "something new"):
        other.write_text(text)
        fingerprints.add(build_from(folder, validation=str(other)).fingerprint)
    assert len(fingerprints) == 2


def test_an_entry_in_the_place_of_another_is_not_used(build_from: BuildFrom, folder: Path) -> None:
    first, second = (build_from(folder, validation_ratio=ratio) for ratio in (0.1, 0.5))
    here, there = Path(first.summary["cache"]), Path(second.summary["cache"])
    shutil.rmtree(there)
    here.rename(there)
    assert build_from(folder, validation_ratio=0.5).fingerprint == second.fingerprint


def test_an_index_that_was_edited_is_not_believed(build_from: BuildFrom, folder: Path) -> None:
    first = build_from(folder)
    path = Path(first.summary["cache"]) / "index.json"
    index = json.loads(path.read_text())
    index["sides"]["train"]["documents"] += 1
    path.write_text(json.dumps(index))
    assert build_from(folder).summary["train"] == first.summary["train"]


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _in_parts(bundle: DataBundle, name: str) -> Path:
    """A file that the largest part of the data has, or the corpus itself."""
    folder = Path(bundle.summary["cache"])
    if (folder / name).exists():
        return folder / name
    return max((folder.parents[1] / "parts").glob(f"*/{name}"), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("damage", [_truncate, _flip_a_bit, Path.unlink])
@pytest.mark.parametrize(
    ("name", "is_tokenized"),
    [
        ("train/tokens.bin", True),
        ("validation/tokens.bin", True),
        ("train/documents.npy", True),
        ("train/origins.jsonl", True),
        ("facts.json", False),
        ("tokenizer/tokenizer.json", False),
        ("index.json", False),
    ],
)
def test_what_is_damaged_is_made_anew_and_no_more(
    build_from: BuildFrom, folder: Path, tmp_path: Path, encoded: list[str], name: str, is_tokenized: bool, damage
) -> None:
    first = build_from(folder)
    tokens = first.train.tokens[:].tobytes()
    damage(_in_parts(first, name))
    second = build_from(folder)
    assert (len(encoded) > 30) is is_tokenized
    if name != "facts.json":  # which is asked only where something else is missing
        assert second.summary["cache_reused"] is False
    assert (second.train.tokens[:].tobytes(), second.fingerprint) == (tokens, first.fingerprint)
    assert build_from(folder).summary["cache_reused"] is True
    assert list((tmp_path / "cache").rglob("*.partial")) == []


@pytest.mark.parametrize(
    ("records", "labels", "source", "name"),
    [
        ("labelled", "class", "builtin:parity?size=50", "train/labels.npy"),
        ("pairs", None, "builtin:reverse?size=50", "train/targets.bin"),
        ("pairs", None, "builtin:reverse?size=50", "validation/targets.npy"),
        ("tagged", None, "builtin:tag?size=50", "train/marks.bin"),
        ("chat", None, "builtin:echo?size=50", "train/marks.bin"),
    ],
)
def test_what_comes_with_the_tokens_is_checked_as_they_are(
    build_from: BuildFrom, records: str, labels: str | None, source: str, name: str
) -> None:
    first = build_from(source, records=records, labels=labels)
    assert build_from(source, records=records, labels=labels).summary["cache_reused"] is True
    _flip_a_bit(_in_parts(first, name))
    second = build_from(source, records=records, labels=labels)
    assert second.summary["cache_reused"] is False
    assert second.fingerprint == first.fingerprint


def test_the_same_source_for_another_task_or_other_fields_is_another_entry(
    build_from: BuildFrom, tmp_path: Path
) -> None:
    path = tmp_path / "d.csv"
    path.write_text("text,a,b\n" + "".join(f"text {n},{n % 2},{n % 3}\n" for n in range(40)))
    folders = {
        build_from(path).summary["cache"],
        build_from(path, records="labelled", labels="class", label_field="a").summary["cache"],
        build_from(path, records="labelled", labels="class", label_field="b").summary["cache"],
        build_from(path, records="labelled", labels="number", label_field="b").summary["cache"],
        build_from(path, group_field="a").summary["cache"],
        build_from(path, bad_lines="skip").summary["cache"],
        build_from(path, specials=("pad",)).summary["cache"],
    }
    assert len(folders) == 7
    template = path.with_name("own.jinja")
    template.write_text("{% for message in messages %}{{ message['content'] }}{{ eos_token }}{% endfor %}")
    chats = {
        build_from("builtin:echo?size=30", records="chat", **knobs).fingerprint
        for knobs in ({}, {"chat_template": str(template), "mask_prompt": False}, {"mask_prompt": False})
    }
    assert len(chats) == 3


def test_the_meaning_of_labels_is_part_of_the_fingerprint(build_from: BuildFrom, tmp_path: Path) -> None:
    fingerprints = set()
    for names in ("ab", "cd"):
        path = tmp_path / "d.csv"
        path.write_text("text,label\n" + "".join(f"text {n},{names[n % 2]}\n" for n in range(40)))
        fingerprints.add(build_from(path, records="labelled", labels="class").fingerprint)
    assert len(fingerprints) == 2


def test_a_function_that_gives_other_records_each_time_is_refused(
    build_from: BuildFrom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_changing_source.py").write_text(
        "import itertools\ncount = itertools.count()\ndef texts():\n    return [f'text {next(count)}'] * 20\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError) as caught:
        build_from("own_changing_source:texts")
    assert str(caught.value) == (
        "data.source: 'own_changing_source:texts' returned different records when called again. It must return the "
        "same records every time."
    )


def test_an_entry_that_was_never_finished_is_not_used_and_goes_away(
    build_from: BuildFrom, folder: Path, tmp_path: Path, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr("trainbook.data.prepare.folder_cache.FolderCache._put", die)
        during.setattr("shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            build_from(folder)
    left = list((tmp_path / "cache" / "tokens").glob("*.partial"))
    assert len(left) == 1
    assert build_from(folder).summary["cache_reused"] is False
    assert not left[0].exists()


def test_a_failure_leaves_nothing_behind(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2: has no field"):
        build_from(tmp_path / "bad.jsonl")
    assert [path for path in (tmp_path / "cache" / "tokens").iterdir() if path.is_dir()] == []


def test_a_source_that_changes_while_it_is_read_is_refused(
    build_from: BuildFrom, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ByteTokenizer.encode_many

    def encode_many(self: ByteTokenizer, batch: list[str]) -> list:
        (folder / "01.txt").write_text("changed")
        return real(self, batch)

    monkeypatch.setattr(ByteTokenizer, "encode_many", encode_many)
    with pytest.raises(DataError, match="changed while it was being read"):
        build_from(folder)


def test_processes_that_start_together_share_one_whole_entry(folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys, json; from trainbook.data import Frame, Request, build\n"
        "from trainbook.knobs.sections.data import DataKnobs\n"
        "request = Request(frame=lambda tokenizer: Frame(256, shift=1))\n"
        "bundle = build(DataKnobs(source=sys.argv[1], cache_dir=sys.argv[2]), 0, request)\n"
        "print(json.dumps([bundle.fingerprint, bundle.summary['cache_reused']]))"
    )
    command = [sys.executable, "-c", program, str(folder), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [json.loads(process.communicate()[0]) for process in processes]
    assert len({fingerprint for fingerprint, _ in answers}) == 1
    assert sorted(reused for _, reused in answers) == [False, True, True]


def test_where_locks_do_not_work_the_slower_process_uses_what_is_there(
    build_from: BuildFrom, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trainbook.data.prepare.cache as cache

    real = cache.encode
    nested: list[str] = []

    def encode(*arguments):
        monkeypatch.setattr(cache, "encode", real)
        nested.append(build_from(folder).fingerprint)
        return real(*arguments)

    monkeypatch.setattr(cache, "_lock", lambda *_: False)
    monkeypatch.setattr(cache, "encode", encode)
    assert build_from(folder).fingerprint == nested[0]


def test_a_cache_that_cannot_be_written_names_the_folder_and_the_knob(
    build_from: BuildFrom, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    with pytest.raises(DataError) as caught:
        build_from(folder)
    assert str(caught.value) == (
        f"the token cache cannot be written to '{tmp_path}/cache/tokens': Not a directory. "
        "Choose another folder with data.cache_dir."
    )


def test_the_cache_is_where_the_knob_then_the_environment_then_the_standard_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("TRAINBOOK_CACHE", "/named")
    assert cache_root("~/mine") == Path("/home/me/mine")
    assert cache_root(None) == Path("/named")
    monkeypatch.delenv("TRAINBOOK_CACHE")
    assert cache_root(None) == Path("/xdg/trainbook")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root(None) == Path("/home/me/.cache/trainbook")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_hashing_a_large_memory_map_leaves_none_of_it_in_memory(tmp_path: Path):
    path, tokens = tmp_path / "tokens.bin", np.arange(24_000_001, dtype=np.uint16)
    tokens.tofile(path)
    stream = np.memmap(path, dtype=np.uint16, mode="r", shape=(len(tokens) - 1,))  # without the last end of text
    before = _mapped_file_bytes()
    assert hash_stream(stream, lambda: None) == hashlib.sha256(tokens[:-1].tobytes()).hexdigest()
    assert _mapped_file_bytes() - before < stream.nbytes / 4


def _mapped_file_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssFile:")).split()[1])
