"""A text that is too long for memory is read part by part, and gives what it would give as a whole."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.data.tokenizer_kinds import make_kind

from trainbook.data import DataBundle
from trainbook.data.prepare.split import Split
from trainbook.data.sources import open_source
from trainbook.data.sources.files import File
from trainbook.data.sources.long import LongDocument
from trainbook.data.sources.records import Document
from trainbook.data.tokenizers import train_bpe
from trainbook.data.tokenizers.training import DistinctWords
from trainbook.errors import DataError

BuildFrom = Callable[..., DataBundle]
TEXT = "Ünïcode, 東京 and 🙂\r\nlines\n\n" * 40 + "end é"
Shrink = Callable[[], None]


@pytest.fixture
def shrink(monkeypatch: pytest.MonkeyPatch) -> Shrink:
    """From now on a text of a few bytes is a long one."""

    def apply() -> None:
        monkeypatch.setattr("trainbook.data.sources.formats.LONG_BYTES", 20)
        monkeypatch.setattr("trainbook.data.sources.long.BLOCK_BYTES", 37)

    return apply


def only_document(path: Path) -> Document:
    (document,) = open_source(str(path)).documents()
    return document


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_long_document_is_the_text_of_its_file(tmp_path: Path, shrink: Shrink, mark: bytes, packed: bool) -> None:
    path = tmp_path / ("text.txt.gz" if packed else "text.txt")
    content = mark + TEXT.encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    short = only_document(path)
    shrink()
    long = only_document(path)
    assert isinstance(long, LongDocument) and not isinstance(short, LongDocument)
    assert long.text == short.text == TEXT
    assert (long.num_characters, long.digest(), long.is_blank) == (len(TEXT), short.digest(), False)
    assert max(map(len, long.chunks())) <= 37
    for ratio in (0.001, 0.1, 0.37, 0.5, 0.9, 0.9999):
        for mine, other in zip(Split(ratio, None).parts(0, long), Split(ratio, None).parts(0, short), strict=True):
            assert (mine is None) == (other is None)
            if mine is not None and other is not None:
                assert (mine.text, mine.first_line, mine.origin) == (other.text, other.first_line, other.origin)
                assert mine.num_characters == len(other.text)


def test_every_place_can_be_cut(tmp_path: Path, shrink: Shrink) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT[:120], encoding="utf-8", newline="")
    shrink()
    document = LongDocument(File(path, path.name, str(path), "data.source"))
    for place in range(121):
        head, tail = document.cut(place)
        assert (head.text if head else "", tail.text if tail else "") == (TEXT[:place], TEXT[place:120])
        if head and tail:
            inner_head, inner_tail = tail.cut(3)
            assert "".join(each.text for each in (head, inner_head, inner_tail) if each) == TEXT[:120]


def test_a_byte_that_is_no_text_is_named_by_its_place_in_the_file(tmp_path: Path, shrink: Shrink) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"ok\n" * 50 + b"\xff" + b"more" * 20)
    with pytest.raises(DataError) as short:
        only_document(path).digest()
    shrink()
    with pytest.raises(DataError, match="0xff at position 150") as long:
        only_document(path).digest()
    assert str(long.value) == str(short.value)


def test_blank_long_texts_are_left_out(tmp_path: Path, shrink: Shrink) -> None:
    (tmp_path / "blank.txt").write_text(" \n" * 200)
    shrink()
    assert list(open_source(str(tmp_path / "blank.txt")).documents()) == []


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word", "bpe", "llama_3", "llama_2", "bert", "t5"])
@pytest.mark.parametrize("ratio", [0.1, 0.0])
def test_tokens_samples_and_split_are_those_of_a_text_that_was_held(
    tmp_path: Path,
    build_from: BuildFrom,
    monkeypatch: pytest.MonkeyPatch,
    shrink: Shrink,
    tokenizer: str,
    ratio: float,
    long_text: str,
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT + long_text[:20_000] + TEXT, encoding="utf-8", newline="")
    name = tokenizer
    if tokenizer not in ("byte", "char", "word", "bpe"):
        make_kind(tokenizer).save(str(tmp_path / "tokenizer.json"))
        name = str(tmp_path / "tokenizer.json")
    # The first time nothing is cut.
    knobs = {"tokenizer": name, "validation_ratio": ratio, "max_seq_length": 16}
    whole = build_from(path, **knobs)
    shrink()
    monkeypatch.setattr("trainbook.data.prepare.writing.PIECE_CHARACTERS", 300)
    monkeypatch.setattr("trainbook.data.prepare.writing.BATCH_CHARACTERS", 1000)
    monkeypatch.setattr("trainbook.data.sources.long.BLOCK_BYTES", 3001)
    (tmp_path / "cache").rename(tmp_path / "first-cache")
    streamed = build_from(path, **knobs)
    assert not streamed.summary["cache_reused"]
    assert streamed.fingerprint == whole.fingerprint
    assert streamed.train.tokens.tolist() == whole.train.tokens.tolist()
    assert streamed.train.describe(5) == whole.train.describe(5)
    for side in ("train", "validation"):
        assert streamed.summary.get(side) == whole.summary.get(side)


def test_a_large_text_is_prepared_without_being_held(
    tmp_path: Path, build_from: BuildFrom, monkeypatch: pytest.MonkeyPatch, long_text: str
) -> None:
    monkeypatch.setattr("trainbook.data.sources.formats.LONG_BYTES", 1 << 18)
    monkeypatch.setattr("trainbook.data.sources.long.BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr("trainbook.data.prepare.writing.BATCH_CHARACTERS", 1 << 16)
    monkeypatch.setattr("trainbook.data.prepare.writing.PIECE_CHARACTERS", 1 << 14)
    path = tmp_path / "text.txt"
    with path.open("w") as stream:
        for _ in range(20):
            stream.write(long_text[:1_000_000])
    tracemalloc.start()
    try:
        build_from(path, tokenizer="char", max_seq_length=16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 2


def test_a_text_that_cannot_be_cut_is_refused_before_it_takes_the_memory(
    tmp_path: Path, build_from: BuildFrom, monkeypatch: pytest.MonkeyPatch, shrink: Shrink
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a" * 5000)
    make_kind("gpt_2").save(str(tmp_path / "tokenizer.json"))
    shrink()
    monkeypatch.setattr("trainbook.data.prepare.writing.PIECE_CHARACTERS", 10)
    monkeypatch.setattr("trainbook.data.prepare.writing.LONGEST_UNCUT", 1000)
    with pytest.raises(DataError, match=r"text\.txt: this text is too long .* characters without a place to cut"):
        build_from(path, tokenizer=str(tmp_path / "tokenizer.json"), max_seq_length=16)


def test_a_document_that_is_too_long_for_the_gopher_filter_is_refused(
    tmp_path: Path, build_from: BuildFrom, monkeypatch: pytest.MonkeyPatch, shrink: Shrink
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Some words, none twice in a row.\n" * 20)
    shrink()
    monkeypatch.setattr("trainbook.data.prepare.split.JUDGED_BYTES", 100)
    with pytest.raises(DataError, match=r"data\.gopher_filter: .* one document, of 594 bytes"):
        build_from(path, gopher_filter=True, max_seq_length=16)


# Training a BPE in a process of its own


def test_a_bpe_that_is_trained_apart_is_the_same_one(monkeypatch: pytest.MonkeyPatch, long_text: str) -> None:
    text, told, merged = long_text[:200_000] + "é🙂", [], []
    here = train_bpe(iter([text]), 400, ["pad"])
    monkeypatch.setattr("trainbook.data.tokenizers.training.SHORT_CHARACTERS", 1000)
    apart = train_bpe(iter([text]), 400, ["pad"], told.append, lambda: merged.append(1))
    assert apart.fingerprint == here.fingerprint
    assert sum(told) == len(text.encode())
    assert merged


def test_a_bpe_is_trained_on_less_text_if_that_has_too_many_different_words() -> None:
    def random_words(seed: int) -> Iterator[str]:
        draw = random.Random(seed)
        for _ in range(200):
            yield " ".join(f"{draw.getrandbits(40):010x}" for _ in range(100))

    words = DistinctWords(20_000)
    taken = list(words.pass_on(random_words(1)))
    assert words.is_full and 10 <= len(taken) <= 40  # 20 texts have 20,000 bytes of different words
    assert words.num_characters == sum(map(len, taken))
    few = DistinctWords(20_000)
    assert len(list(few.pass_on(text for _ in range(50) for text in [next(random_words(1))]))) == 50
    assert not few.is_full


def test_a_run_says_that_its_bpe_was_trained_on_less_text(
    tmp_path: Path, build_from: BuildFrom, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(0)
    path = tmp_path / "words.txt"
    path.write_text("\n".join(" ".join(f"{draw.getrandbits(40):010x}" for _ in range(10)) for _ in range(3000)))
    monkeypatch.setattr("trainbook.data.tokenizers.training.PIECE_CHARACTERS", 5000)
    monkeypatch.setattr("trainbook.data.tokenizers.training.SHORT_CHARACTERS", 1000)
    monkeypatch.setattr("trainbook.data.prepare.corpus.DistinctWords", lambda: DistinctWords(50_000))
    data = build_from(path, tokenizer="bpe", vocab_size=300, max_seq_length=16)
    sample = data.summary["tokenizer_sample"]
    assert 30_000 < sample["characters"] < 100_000 and sample["of"] == path.stat().st_size
    assert f"a sample of the text: {sample['characters']:,} of " in data.summary["notices"][0]
    assert "training the BPE tokenizer: merging pairs of the first " in capfd.readouterr().err


def test_a_bpe_whose_training_is_interrupted_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainbook.data.tokenizers.training.SHORT_CHARACTERS", 1000)
    started: list[subprocess.Popen[bytes]] = []

    class Remembered(subprocess.Popen):  # pyright: ignore[reportMissingTypeArgument]
        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, **more)  # pyright: ignore
            started.append(self)

    monkeypatch.setattr("trainbook.data.tokenizers.training.subprocess.Popen", Remembered)

    def texts() -> Iterator[str]:
        for number in range(50):
            if number == 40:
                raise KeyboardInterrupt
            yield f"text {number}\n" * 1000

    with pytest.raises(KeyboardInterrupt):
        train_bpe(texts(), 400)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


@pytest.mark.slow
def test_ctrl_c_while_a_bpe_is_trained_ends_with_130_and_spoils_nothing(tmp_path: Path) -> None:
    path, draw = tmp_path / "text.txt", random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlucmwfgypbvk", k=draw.randint(2, 9))) for _ in range(150_000)]
    path.write_text(
        "".join(f"{word}{number} " for number in range(6) for word in words)
    )  # few words would merge at once
    command = [sys.executable, "-m", "trainbook", "train", "gpt-tiny", f"data.source={path}", "data.tokenizer=bpe"]
    command += [f"data.cache_dir={tmp_path / 'cache'}", "--runs-dir", str(tmp_path / "runs"), "--name", "one"]
    # So many merges take long, and the run after them, which would hide that nobody saw them, does not.
    command += ["data.vocab_size=30000", "training.max_steps=1"]
    lines = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "training the BPE tokenizer: merging" in line:
                break
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert time.monotonic() - began < 60
    assert "Traceback" not in "".join(lines) + rest
    left = [found for found in (tmp_path / "cache" / "tokens").iterdir() if found.suffix != ".lock"]
    assert left == []
