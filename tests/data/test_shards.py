"""Sources of many files: prepared file by file, by one process or several, and never twice."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.workers import in_workers

from trainbook.data import DataBundle, Frame, Request, build
from trainbook.data.prepare.cached import ConcatMemmap
from trainbook.data.prepare.corpus import decide
from trainbook.data.prepare.folder_cache import SourcePart
from trainbook.data.prepare.hashes import Hashes
from trainbook.data.tokenizers import ByteTokenizer
from trainbook.errors import DataError
from trainbook.knobs.sections.data import DataKnobs

BuildFrom = Callable[..., DataBundle]


@pytest.fixture(autouse=True)
def _a_part_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainbook.data.prepare.folder_cache.SMALL_BYTES", 0)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(12):
        write_shard(folder, number)
    return folder


def write_shard(folder: Path, number: int, what: str = "Shard") -> Path:
    path = folder / f"{number:04}.jsonl"
    records = [{"text": f"{what} {number}, line {line}, ünïcode."} for line in range(20)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first words of every text that the byte tokenizer was asked to encode."""
    texts: list[str] = []
    real = ByteTokenizer.encode_many

    def encode_many(self: ByteTokenizer, batch: list[str]) -> list:
        texts.extend(text.partition(",")[0] for text in batch)
        return real(self, batch)

    monkeypatch.setattr(ByteTokenizer, "encode_many", encode_many)
    return texts


def test_many_shards_are_the_same_data_as_one_file(build_from: BuildFrom, shards: Path, tmp_path: Path) -> None:
    """Not the split: that goes by what files are called."""
    one = tmp_path / "one.jsonl"
    one.write_bytes(b"".join(path.read_bytes() for path in sorted(shards.iterdir())))
    many, single = build_from(shards, validation_ratio=0.0), build_from(one, validation_ratio=0.0)
    assert isinstance(many.train.tokens, ConcatMemmap)
    assert many.fingerprint == single.fingerprint
    assert many.train.tokens[:].tolist() == single.train.tokens[:].tolist()
    texts = [json.loads(line)["text"].encode() for line in one.read_text().splitlines()]
    between = [token for text in texts for token in (*text, 256)]
    assert many.train.tokens[:].tolist() == between[:-1]  # behind the last one nothing follows
    assert many.train.describe(100)["text"] == single.train.describe(100)["text"]
    assert many.train.describe(100)["source"] == f"{shards}/0000.jsonl:4"
    assert many.summary["train"] == single.summary["train"]


def test_only_a_shard_that_changed_or_came_is_tokenized_anew(
    build_from: BuildFrom, shards: Path, encoded: list[str]
) -> None:
    first = build_from(shards)
    assert set(encoded) == {f"Shard {number}" for number in range(12)}
    encoded.clear()
    write_shard(shards, 3, "Another")
    write_shard(shards, 12)
    second = build_from(shards)
    assert set(encoded) == {"Another 3", "Shard 12"}
    assert len(encoded) == 40
    assert second.fingerprint != first.fingerprint
    encoded.clear()
    shutil.rmtree(Path(second.summary["cache"]).parents[1])
    assert build_from(shards).fingerprint == second.fingerprint
    assert len(encoded) == 260


def test_what_was_done_before_a_kill_is_not_done_again(
    build_from: BuildFrom, shards: Path, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import trainbook.data.prepare.cache as cache

    real, calls = cache.encode, []

    def encode(*arguments: Any) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(cache, "encode", encode)
    with pytest.raises(KeyboardInterrupt):
        build_from(shards)
    assert len(set(encoded)) == 7
    encoded.clear()
    assert build_from(shards).summary["cache_reused"] is False
    assert len(set(encoded)) == 5
    encoded.clear()
    assert build_from(shards).summary["cache_reused"] is True
    assert encoded == []


@pytest.mark.parametrize("world", [2, 4, 20])
def test_processes_share_the_shards_and_get_the_same_data(
    build_from: BuildFrom, shards: Path, tmp_path: Path, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trainbook.data.prepare.cache as cache

    done: list[tuple[int, str]] = []
    real = cache._Preparation._encode

    def spy(self: Any, decided: Any, one: Any, *arguments: Any) -> Any:
        done.append((self.workers.rank, one.part.source.reader.files[0].name))
        return real(self, decided, one, *arguments)

    alone = build_from(shards)
    monkeypatch.setattr(cache._Preparation, "_encode", spy)
    data = DataKnobs(source=str(shards), cache_dir=str(tmp_path / f"cache of {world}"))
    request = Request(frame=lambda tokenizer: Frame(data.max_seq_length, shift=1))
    bundles = in_workers(world, lambda workers: build(data, 7, request, workers))
    for bundle in bundles:
        assert isinstance(bundle, DataBundle), bundle
        assert bundle.fingerprint == alone.fingerprint
        assert bundle.train.tokens[:].tolist() == alone.train.tokens[:].tolist()
    assert sorted(done) == sorted((number % world, f"{number:04}.jsonl") for number in range(12))


def test_each_process_reads_its_own_files_only(
    build_from: BuildFrom, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apart from the first records, which tell what the fields are."""
    import threading

    from trainbook.data.sources import reader as reader_module

    read: dict[int, set[str]] = {}
    real = reader_module.FORMATS[".jsonl"]
    ranks: dict[int, int] = {}

    def spy(file: Any, complain: Any) -> Any:
        read.setdefault(ranks[threading.get_ident()], set()).add(file.name)
        return real(file, complain)

    spy.__name__ = real.__name__
    monkeypatch.setitem(reader_module.FORMATS, ".jsonl", spy)
    data = DataKnobs(source=str(shards), cache_dir=str(tmp_path / "cache"), text_field="text")
    request = Request(frame=lambda tokenizer: Frame(data.max_seq_length, shift=1))

    def work(workers: Any) -> DataBundle:
        ranks[threading.get_ident()] = workers.rank
        return build(data, 7, request, workers)

    in_workers(3, work)
    first_hundred = {f"{number:04}.jsonl" for number in range(5)}
    for rank in range(3):
        own = {f"{number:04}.jsonl" for number in range(rank, 12, 3)}
        assert own <= read[rank] <= own | first_hundred


def test_neither_the_order_of_listing_nor_small_files_together_change_anything(
    build_from: BuildFrom, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    first = build_from(shards)
    real = os.walk
    monkeypatch.setattr(os, "walk", lambda top: ((at, below, files[::-1]) for at, below, files in real(top)))
    monkeypatch.setattr("trainbook.data.prepare.folder_cache.SMALL_BYTES", 1 << 20)
    shutil.rmtree(tmp_path / "cache")
    second = build_from(shards)
    assert second.fingerprint == first.fingerprint


def test_small_files_are_prepared_together_and_a_new_one_touches_its_neighbours_only(
    build_from: BuildFrom, tmp_path: Path, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainbook.data.prepare.folder_cache.SMALL_BYTES", 1 << 18)
    monkeypatch.setattr("trainbook.data.prepare.folder_cache.SMALL_TOGETHER", 8)
    folder = tmp_path / "small"
    folder.mkdir()
    for number in range(0, 400, 2):
        (folder / f"{number:03}.txt").write_text(f"Text {number}, of a small file.")
    build_from(folder, validation_ratio=0.0)
    assert len(encoded) == 200
    assert 5 < len(list((tmp_path / "cache" / "parts").iterdir())) < 80
    encoded.clear()
    (folder / "201.txt").write_text("Text 201, of a small file.")
    build_from(folder, validation_ratio=0.0)
    assert "Text 201" in encoded
    assert len(encoded) < 60


def test_shards_of_labelled_records_pairs_and_tags_are_joined(build_from: BuildFrom, tmp_path: Path) -> None:
    def write(name: str, lines: list[dict[str, Any]], into: int) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        size = -(-len(lines) // into)
        for number in range(into):
            part = lines[number * size : (number + 1) * size]
            (folder / f"{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in part))
        return folder

    kinds: dict[str, tuple[str | None, list[dict[str, Any]]]] = {
        "labelled": ("class", [{"text": f"text {n}", "label": "abc"[n % 3]} for n in range(30)]),
        "pairs": (None, [{"text": f"text {n}", "target": f"answer {n}" * (n % 3 + 1)} for n in range(30)]),
        "tagged": (None, [{"words": ["a", f"b{n}"], "tags": ["X", "Y"]} for n in range(30)]),
    }
    for kind, (labels, lines) in kinds.items():
        options: dict[str, Any] = {"records": kind, "labels": labels, "validation_ratio": 0.0}
        one = build_from(write(f"{kind} in one", lines, 1), **options)
        several = build_from(write(f"{kind} in several", lines, 7), **options)
        assert one.fingerprint == several.fingerprint
        ids = np.array([0, 4, 5, 29, 14])
        assert one.train.read(ids).values.tolist() == several.train.read(ids).values.tolist()
        for read in ("read_targets", "read_marks"):
            mine, its = getattr(one.train, read)(ids), getattr(several.train, read)(ids)
            assert (mine is None) == (its is None)
            assert mine is None or mine.values.tolist() == its.values.tolist()
        if kind == "labelled":
            assert one.train.labels(ids).tolist() == several.train.labels(ids).tolist()  # pyright: ignore


def test_compressed_shards_are_read_as_what_is_inside(build_from: BuildFrom, shards: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    packed = tmp_path / "packed"
    packed.mkdir()
    packings: list[tuple[str, Callable[[bytes], bytes]]] = [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", lambda content: pyarrow.compress(content, codec="zstd", asbytes=True)),
        ("", bytes),
    ]
    for number, path in enumerate(sorted(shards.iterdir())):
        suffix, pack = packings[number % len(packings)]
        (packed / f"{path.name}{suffix}").write_bytes(pack(path.read_bytes()))
    (packed / "0099.jsonl.gz").write_bytes(b"")  # not even a compressed nothing
    assert build_from(packed, validation_ratio=0.0).fingerprint == build_from(shards, validation_ratio=0.0).fingerprint


def test_a_broken_compressed_shard_is_named(build_from: BuildFrom, shards: Path) -> None:
    whole = gzip.compress((shards / "0003.jsonl").read_bytes())
    for content, reason in ((b"no gzip", "Not a gzipped file"), (whole[:-20], "Compressed file ended")):
        (shards / "0003.jsonl.gz").write_bytes(content)
        with pytest.raises(DataError, match=rf"^data.source: '{shards}/0003.jsonl.gz' cannot be read: {reason}"):
            build_from(shards)
    with pytest.raises(DataError, match="Decompress it first"):
        path = shards.parent / "a.parquet.gz"
        path.write_bytes(whole)
        build_from(path)


def test_a_list_names_files_folders_and_globs_in_its_own_order(build_from: BuildFrom, shards: Path) -> None:
    listing = shards.parent / "list.txt"
    listing.write_text("# the newest first\nshards/0011.jsonl\n\nshards/000[0-3].jsonl\nshards/0004.jsonl\n")
    bundle = build_from(f"@{listing}", validation_ratio=0.0)
    assert bundle.summary["train"]["documents"] == 120
    assert bundle.train.describe(0)["source"] == f"{shards}/0011.jsonl:1"
    assert bundle.train.describe(0)["text"].startswith("Shard 11, line 0")
    listing.write_text(f"{shards}\n")
    assert build_from(f"@{listing}").summary["train"]["documents"] > 200


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "data.source: the list '{list}' has no file."),
        ("shards/0001.jsonl\nshards/*1.jsonl", "{list}:2: '{folder}/shards/0001.jsonl' is listed twice."),
        ("shards/*.csv", "{list}:1: data.source: no file matches '{folder}/shards/*.csv'."),
        (
            "shards/0000.jsonl\nshards/002.jsonl",
            "{list}:2: data.source: '{folder}/shards/002.jsonl' does not exist. Did you mean "
            "'{folder}/shards/0002.jsonl'?",
        ),
    ],
)
def test_a_mistake_in_a_list_is_named_by_its_line(
    build_from: BuildFrom, shards: Path, lines: str, message: str
) -> None:
    listing = shards.parent / "list.txt"
    listing.write_text(lines)
    with pytest.raises(DataError) as caught:
        build_from(f"@{listing}")
    assert str(caught.value) == message.format(list=listing, folder=shards.parent)


def test_empty_shards_and_several_kinds_are_allowed_and_told(build_from: BuildFrom, shards: Path) -> None:
    (shards / "0005.jsonl").write_text("")
    (shards / "0007.jsonl").write_text("\n\n")
    (shards / "readme.md").write_text("What this is.")
    bundle = build_from(shards)
    assert bundle.summary["notices"] == [
        f"data.source: '{shards}' has files of several kinds, each read according to its suffix: 12 *.jsonl, 1 *.md.",
        f"data.source: '{shards}': 2 of its 13 files have no text, such as {shards}/0005.jsonl.",
    ]
    assert bundle.summary["empty_files"]["count"] == 2


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": ', ":21: is not valid JSON: Expecting value at column 10."),
        ('{"body": "x"}', ":21: has no field 'text' (data.text_field); its fields are: 'body'."),
    ],
)
def test_a_bad_line_in_one_shard_is_named_and_the_other_shards_are_not_lost(
    shards: Path, tmp_path: Path, encoded: list[str], world: int, line: str, message: str
) -> None:
    good = (shards / "0010.jsonl").read_text()
    (shards / "0010.jsonl").write_text(good + line + "\n")
    data = DataKnobs(source=str(shards), cache_dir=str(tmp_path / "cache"))
    request = Request(frame=lambda tokenizer: Frame(data.max_seq_length, shift=1))
    answers = in_workers(world, lambda workers: build(data, 7, request, workers))
    assert [type(answer) for answer in answers] == [DataError] * world
    hint = "To skip such records, set data.bad_lines=skip."
    assert {str(answer) for answer in answers} == {f"{shards}/0010.jsonl{message} {hint}"}
    # Those before it are kept; several processes may be anywhere when they hear of it.
    assert len(list((tmp_path / "cache" / "surveys").iterdir())) >= (10 if world == 1 else 3)
    (shards / "0010.jsonl").write_text(good)
    bundles = in_workers(world, lambda workers: build(data, 7, request, workers))
    assert all(isinstance(bundle, DataBundle) for bundle in bundles)
    assert len(encoded) == 240


def test_a_tokenizer_is_trained_on_a_sample_that_stays_when_shards_are_added(
    build_from: BuildFrom, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trainbook.data.prepare.corpus as decide

    monkeypatch.setattr(decide, "BPE_CHARACTERS", 1500)
    first = build_from(shards, tokenizer="bpe", vocab_size=300, validation_ratio=0.0)
    assert first.summary["tokenizer_sample"]["characters"] == 1500
    assert "a sample of the text: 1,500 of 6,160" in first.summary["notices"][0]
    fingerprints = {first.tokenizer.fingerprint}
    for number in range(20, 32):
        write_shard(shards, number, "Other text with other words in it: zebra")
        bundle = build_from(shards, tokenizer="bpe", vocab_size=300, validation_ratio=0.0)
        fingerprints.add(bundle.tokenizer.fingerprint)
    # Of twelve new shards some come into the sample, and most do not.
    assert 1 < len(fingerprints) < 8


def test_a_survey_that_is_damaged_is_made_anew(build_from: BuildFrom, shards: Path, tmp_path: Path) -> None:
    first = build_from(shards)
    surveys = sorted((tmp_path / "cache" / "surveys").iterdir())
    assert len(surveys) == 12
    content = bytearray(surveys[0].read_bytes())
    content[len(content) // 2] ^= 1
    surveys[0].write_bytes(content)
    surveys[1].write_bytes(b"")
    surveys[2].unlink()
    shutil.rmtree(tmp_path / "cache" / "tokens")
    assert build_from(shards).fingerprint == first.fingerprint


def test_progress_is_a_few_lines_where_nobody_looks(
    build_from: BuildFrom, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(40):
        write_shard(folder, number)
    build_from(folder)
    lines = capfd.readouterr().err.splitlines()
    assert lines[9] == "reading: 39.4 kB of 39.4 kB"
    assert all(line.startswith("tokenizing: ") and line.endswith(" kB of 39.4 kB") for line in lines[10:])
    assert len(lines) == 20
    build_from(folder)
    assert capfd.readouterr().err == ""


# Files that do not hold still


def test_a_shard_that_grows_after_it_was_surveyed_is_said_to_have_changed(
    build_from: BuildFrom, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grow_and_decide(*given: Any) -> Any:
        path = shards / "0011.jsonl"
        path.write_text(path.read_text(encoding="utf-8") + '{"text": "one more"}\n', encoding="utf-8")
        return decide(*given)

    monkeypatch.setattr("trainbook.data.prepare.cache.decide", grow_and_decide)
    with pytest.raises(DataError, match="changed while it was being read"):
        build_from(shards)


def test_what_was_seen_of_a_shard_is_kept_only_if_it_has_not_changed(
    build_from: BuildFrom, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the process is killed before it can take it back."""
    kept: list[str] = []

    def must_be_unchanged(self: SourcePart, hashes: Hashes) -> None:
        kept.extend(path.name for path in (tmp_path / "cache" / "surveys").glob("*.npz"))
        raise KeyboardInterrupt

    monkeypatch.setattr(SourcePart, "must_be_unchanged", must_be_unchanged)
    with pytest.raises(KeyboardInterrupt):
        build_from(shards)
    assert kept == []
    assert list((tmp_path / "cache" / "surveys").iterdir()) == []


def test_processes_that_see_other_files_are_told_so(shards: Path, tmp_path: Path) -> None:
    request = Request(frame=lambda tokenizer: Frame(32, shift=1))
    other = tmp_path / "other"
    shutil.copytree(shards, other)
    write_shard(other, 12)

    def prepare(workers: Any) -> DataBundle:
        source = shards if workers.rank == 0 else other
        return build(DataKnobs(source=str(source), cache_dir=str(tmp_path / "cache")), 7, request, workers)

    answers = in_workers(2, prepare)
    assert [type(answer) for answer in answers] == [DataError] * 2
    assert all("the processes do not see the same files" in str(answer) for answer in answers)


def test_hidden_files_and_folders_are_left_alone(build_from: BuildFrom, shards: Path) -> None:
    """Such as those that other systems and editors leave beside a file."""
    before = build_from(shards).fingerprint
    (shards / "._0001.jsonl").write_bytes(b"\x00\x05\x16\x07\xff")
    (shards / ".cache").mkdir()
    write_shard(shards / ".cache", 99)
    assert build_from(shards).fingerprint == before
