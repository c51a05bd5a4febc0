from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.data import BatchPlan, DataBundle, TokenDocuments, TokenWindows, build, load_tokenizer
from trainbook.errors import DataError
from trainbook.knobs.sections.data import Data

BuildFrom = Callable[..., DataBundle]


def whole_text(bundle, side: str) -> str:
    return bundle.tokenizer.decode(getattr(bundle, side).tokens)


def test_a_text_file_gives_its_first_nine_tenths_to_training(
    build_from: BuildFrom, tmp_path: Path, long_text: str
) -> None:
    (tmp_path / "t.txt").write_text(long_text, encoding="utf-8")
    bundle = build_from(tmp_path / "t.txt", tokenizer="char")
    cut = int(len(long_text) * 0.9)
    assert whole_text(bundle, "train") == long_text[:cut]
    assert whole_text(bundle, "validation") == long_text[cut:]
    assert bundle.tokenizer.vocab_size == len(set(long_text))
    assert bundle.tokenizer.end_of_text is None
    assert bundle.train.tokens.dtype == np.uint16
    line = long_text.count("\n", 0, cut) + 1
    assert bundle.validation is not None
    assert bundle.validation.describe(0)["source"] == f"{tmp_path}/t.txt:{line}"


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_a_folder_is_split_by_file_and_nothing_leaks(build_from: BuildFrom, folder: Path, tokenizer: str) -> None:
    (folder / "copy.txt").write_text((folder / "01.txt").read_text(encoding="utf-8"), encoding="utf-8")
    bundle = build_from(folder, tokenizer=tokenizer, validation_ratio=0.3)
    assert bundle.validation is not None
    train, validation = (set(whole_text(bundle, side).split("<|endoftext|>")) for side in ("train", "validation"))
    assert train and validation and train.isdisjoint(validation)
    files = {path.read_text(encoding="utf-8") for path in folder.rglob("*.txt")}
    assert train | validation == files
    assert bundle.summary["train"]["documents"] + bundle.summary["validation"]["documents"] == 31
    assert bundle.tokenizer.end_of_text is not None


def test_bpe_learns_from_training_text_only(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("abc " * 900 + "xyzzy " * 66)
    bundle = build_from(tmp_path / "t.txt", tokenizer="bpe", vocab_size=300)
    assert len(bundle.tokenizer.encode(" abc")) == 1
    assert len(bundle.tokenizer.encode("xyzzy")) == 5


def test_a_validation_source_leaves_all_of_the_other_to_training(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("all of it")
    (tmp_path / "v.jsonl").write_text('{"text": "all of it"}\n{"text": "new: z"}\n')
    bundle = build_from(tmp_path / "t.txt", validation=str(tmp_path / "v.jsonl"), tokenizer="char")
    assert whole_text(bundle, "train") == "all of it"
    assert whole_text(bundle, "validation") == "all of it<|endoftext|>new: z"
    assert bundle.summary["validation"]["also_in_train"] == 1
    assert bundle.validation is not None
    assert bundle.validation.describe(12)["source"] == f"{tmp_path}/v.jsonl:2"


def test_without_a_ratio_there_is_no_validation(build_from: BuildFrom, folder: Path) -> None:
    bundle = build_from(folder, validation_ratio=0.0)
    assert bundle.validation is None
    assert "validation" not in bundle.summary
    assert bundle.summary["train"]["documents"] == 30


def test_the_standard_library_trains_without_any_file_of_the_users(tmp_path: Path) -> None:
    bundle = build(Data(cache_dir=str(tmp_path)), 0)
    assert isinstance(bundle.train, TokenWindows)
    assert bundle.summary["train"]["tokens"] > 1_000_000
    batch = BatchPlan(bundle.train, 4, 0, True).batch(0)
    described = bundle.train.describe(int(batch.ids[0]))
    path, line = described["source"].removeprefix("builtin:pystdlib/").rsplit(":", 1)
    import sysconfig

    text = (Path(sysconfig.get_paths()["stdlib"]) / path).read_text(encoding="utf-8", errors="replace")
    first_whole_line = described["text"].split("\n")[1]
    assert text.split("\n")[int(line)] == first_whole_line


def test_documents_are_samples_when_asked_for(build_from: BuildFrom, folder: Path) -> None:
    bundle = build_from(folder, samples="documents", max_seq_length=2000, truncation=False)
    assert isinstance(bundle.train, TokenDocuments)
    origin = Path(bundle.train.describe(2)["source"])
    expected = [*origin.read_bytes(), 256]
    assert bundle.train.sample(2).tolist() == expected
    with pytest.raises(
        DataError, match=rf"^{folder}/.*\.txt: with data\.truncation=false a document must have at most"
    ):
        build_from(folder, samples="documents", max_seq_length=100, truncation=False)


def test_the_seed_moves_windows_and_nothing_else(build_from: BuildFrom, folder: Path) -> None:
    one, two = (build_from(folder, seed=seed, max_seq_length=64) for seed in (1, 2))
    assert one.fingerprint == two.fingerprint
    assert [one.train.sample(0, e)[0] for e in range(9)] != [two.train.sample(0, e)[0] for e in range(9)]
    assert one.validation is not None and two.validation is not None
    assert one.validation.sample(0).tolist() == two.validation.sample(0).tolist()


def test_a_tokenizer_of_the_users_own_is_used_as_it_is(build_from: BuildFrom, folder: Path, tmp_path: Path) -> None:
    trained = build_from(folder, tokenizer="bpe", vocab_size=300)
    trained.tokenizer.save(tmp_path / "mine")
    reused = build_from(folder, tokenizer=str(tmp_path / "mine"), validation_ratio=0.0)
    assert reused.tokenizer.fingerprint == trained.tokenizer.fingerprint
    assert load_tokenizer(tmp_path / "mine").fingerprint == trained.tokenizer.fingerprint


@pytest.mark.parametrize(
    ("text", "knobs", "law"),
    [
        ("", {}, "data.source: '{path}' has no text: its one file is empty."),
        (" \n", {}, "data.source: '{path}' has no text: its one file is empty."),
        (
            "ab",
            {"validation_ratio": 0.5},
            "data.source: '{path}' must have at least 2 tokens, to read one and predict the next, but has 1.",
        ),
        (
            "abcdefgh",
            {},
            "data.validation_ratio=0.1: the validation part of '{path}' must have at least 2 tokens, "
            "to read one and predict the next, but has 1.",
        ),
        (
            "abcdefgh",
            {"tokenizer": "char", "vocab_size": 9},
            "data.vocab_size: only data.tokenizer=bpe can choose its size; "
            "data.tokenizer=char has 8 tokens, but got 9.",
        ),
    ],
)
def test_too_little_text_says_what_is_missing(
    build_from: BuildFrom, tmp_path: Path, text: str, knobs: dict[str, Any], law: str
) -> None:
    path = tmp_path / "t.txt"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        build_from(path, **knobs)
    assert str(caught.value) == law.format(path=path)


def test_an_empty_validation_source_names_its_knob(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("text")
    (tmp_path / "v.txt").write_text("")
    with pytest.raises(DataError, match=r"^data\.validation: '.*v\.txt' has no text"):
        build_from(tmp_path / "t.txt", validation=str(tmp_path / "v.txt"))


def test_data_needs_no_torch() -> None:
    program = "import sys, trainbook.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
