from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainbook.data import (
    BatchPlan,
    DataBundle,
    Frame,
    Request,
    TokenDocuments,
    TokenWindows,
    load_tokenizer,
    open_records,
)
from trainbook.errors import DataError
from trainbook.knobs.sections.data import DataKnobs

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


def test_the_standard_library_trains_without_any_file_of_the_users(build_from: BuildFrom) -> None:
    bundle = build_from("builtin:pystdlib")
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
        DataError, match=rf"^{folder}/.*\.txt: with data\.truncation=false, a document must have at most"
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
        ("", {}, "data.source: '{path}' has no text: the file is empty."),
        (" \n", {}, "data.source: '{path}' has no text: the file has only white space."),
        (
            "ab",
            {"validation_ratio": 0.5},
            "data.source: '{path}' must have at least 2 tokens (one to read, one to predict), but has 1.",
        ),
        (
            "abcdefgh",
            {},
            "data.validation_ratio=0.1: the validation split of '{path}' must have at least 2 tokens (one to read, "
            "one to predict), but has 1.",
        ),
        (
            "abcdefgh",
            {"tokenizer": "char", "vocab_size": 9},
            "data.vocab_size: only data.tokenizer=bpe has a configurable size; data.tokenizer=char has 8 tokens, but "
            "got 9.",
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


def write_reviews(path: Path, count: int = 60) -> list[str]:
    """A CSV of texts with a label each, the first nine of class c."""
    labels = ["c" if number < 9 else "ab"[number % 2] for number in range(count)]
    rows = (f'{number},"Text {number},\n{label}",{label}\n' for number, label in enumerate(labels))
    path.write_text("id,text,label\n" + "".join(rows))
    return labels


def rows_of(samples) -> tuple[np.ndarray, list[int]]:
    """All ids, and the number that each text begins with."""
    ids = samples.ids(np.arange(samples.num_samples), np.zeros(samples.num_samples, dtype=np.int64))
    texts = [samples.tokenizer.decode(part) for part in samples.read(ids).split()]
    return ids, [int(text.removeprefix("Text ").partition(",")[0]) for text in texts]


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe"])
def test_every_text_keeps_its_label_through_split_and_tokens(
    build_from: BuildFrom, tmp_path: Path, tokenizer: str
) -> None:
    labels = write_reviews(tmp_path / "d.csv")
    bundle = build_from(
        tmp_path / "d.csv", records="labelled", labels="class", tokenizer=tokenizer, validation_ratio=0.3
    )
    assert bundle.label_names == ("a", "b", "c")
    seen: list[int] = []
    for samples in (bundle.train, bundle.validation):
        assert samples is not None
        ids, numbers = rows_of(samples)
        given = samples.labels(ids)
        assert given is not None
        assert [bundle.label_names[label] for label in given] == [labels[number] for number in numbers]
        seen += numbers
    assert sorted(seen) == list(range(60))
    assert bundle.summary["fields"] == {"text": "text", "label": "label"}
    assert (bundle.summary["records"], bundle.summary["classes"], bundle.summary["samples"]) == (
        "labelled",
        3,
        "documents",
    )
    assert bundle.train.describe(0)["source"] == f"{tmp_path}/d.csv:2"


def test_every_text_keeps_its_target(build_from: BuildFrom) -> None:
    bundle = build_from("builtin:reverse?size=100", records="pairs", tokenizer="char", specials=("pad",))
    for samples in (bundle.train, bundle.validation):
        assert samples is not None
        ids = samples.ids(np.arange(samples.num_samples), np.zeros(samples.num_samples, dtype=np.int64))
        targets = samples.read_targets(ids)
        assert targets is not None
        for text, target in zip(samples.read(ids).split(), targets.split(), strict=True):
            assert bundle.tokenizer.decode(text) == bundle.tokenizer.decode(target)[::-1]
    assert bundle.tokenizer.special("pad") is not None
    facts = bundle.summary["validation"]
    assert bundle.bytes_per_token == facts["target_bytes"] / (facts["target_tokens"] + facts["documents"])


def test_a_tokenizer_learns_from_targets_too(build_from: BuildFrom, tmp_path: Path) -> None:
    lines = (f'{{"text": "x{number}", "target": "wonderful wonderful {number}"}}' for number in range(40))
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    bpe = build_from(tmp_path / "d.jsonl", records="pairs", tokenizer="bpe", vocab_size=300).tokenizer
    assert len(bpe.encode("wonderful")) == 1
    char = build_from(tmp_path / "d.jsonl", records="pairs", tokenizer="char").tokenizer
    assert char.decode(char.encode("wonderful")) == "wonderful"


def test_validation_may_lack_a_class_but_not_have_one_of_its_own(build_from: BuildFrom, tmp_path: Path) -> None:
    write_reviews(tmp_path / "d.csv")
    (tmp_path / "v.csv").write_text("text,label\nx,a\ny,b\n")
    knobs = {"records": "labelled", "labels": "class", "validation": str(tmp_path / "v.csv")}
    bundle = build_from(tmp_path / "d.csv", **knobs)
    assert bundle.validation is not None
    given = bundle.validation.labels(np.arange(2))
    assert given is not None and given.tolist() == [0, 1]
    (tmp_path / "v.csv").write_text("text,label\nx,a\ny,d\n")
    with pytest.raises(DataError) as caught:
        build_from(tmp_path / "d.csv", **knobs)
    assert str(caught.value) == (
        f"{tmp_path}/v.csv:3: the class 'd' is not in the training data, so the model cannot learn it; the training "
        "data has 'a', 'b', 'c'."
    )


def test_a_class_that_the_split_left_to_validation_alone_says_what_to_do(build_from: BuildFrom, tmp_path: Path) -> None:
    # With as many classes as texts, whatever is held out has a class of its own.
    lines = [json.dumps({"text": f"text {number}", "label": f"c{number}"}) for number in range(20)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError) as caught:
        build_from(tmp_path / "d.jsonl", records="labelled", labels="class")
    place, _, rest = str(caught.value).partition(": the class 'c")
    assert place.startswith(f"{tmp_path}/d.jsonl:")
    assert rest.partition("'")[2] == (
        " occurs only in the validation split (data.validation_ratio=0.1), so the model cannot learn it. Add "
        "documents of that class, set data.validation to a separate source, or set data.validation_ratio=0."
    )


def test_numbers_that_are_given_as_classes_lead_to_regression(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text,price\n" + "".join(f"text {n},{n}.5\n" for n in range(20)))
    with pytest.raises(DataError, match=r"occurs only in .* To predict a number, set training\.task=regress\.$"):
        build_from(tmp_path / "d.csv", records="labelled", labels="class")


def test_validation_takes_the_fields_of_training(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"remark": "one two"}))
    (tmp_path / "v.jsonl").write_text(json.dumps({"text": "other", "remark": "three four"}))
    data = build_from(tmp_path / "t.jsonl", validation=str(tmp_path / "v.jsonl"), samples="documents")
    assert data.summary["validation_fields"] == data.summary["fields"] == {"text": "remark"}
    assert data.validation is not None and data.validation.describe(0)["text"] == "three four"


def test_whole_numbers_as_classes_are_in_the_order_of_numbers(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text,label\n" + "".join(f"text {n},{n % 12}\n" for n in range(60)))
    bundle = build_from(tmp_path / "d.csv", records="labelled", labels="class")
    assert bundle.label_names == tuple(str(number) for number in range(12))


def test_one_class_alone_cannot_be_learned(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text,label\n" + "".join(f"text {n},a\n" for n in range(20)))
    with pytest.raises(DataError, match=r"must have at least 2 classes, but has only 'a'\.$"):
        build_from(tmp_path / "d.csv", records="labelled", labels="class")


def test_records_that_cannot_be_divided_say_what_to_do(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "a", "target": "b"}\n' * 20)
    with pytest.raises(DataError) as caught:
        build_from(tmp_path / "d.jsonl", records="pairs")
    assert str(caught.value) == (
        f"data.validation_ratio: '{tmp_path}/d.jsonl' cannot be split: all of its records have the same text or "
        "group. Set data.validation to a separate source, or set data.validation_ratio=0."
    )
    assert build_from(tmp_path / "d.jsonl", records="pairs", validation_ratio=0.0).train.num_samples == 20


def test_one_record_alone_is_said_to_be_one(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "a", "target": "b"}\n')
    with pytest.raises(DataError, match=r"cannot be split: it has only one record\. Set data\.validation to"):
        build_from(tmp_path / "d.jsonl", records="pairs")


def test_records_that_cannot_be_divided_are_not_said_to_be_all_where_others_were_skipped(
    build_from: BuildFrom, tmp_path: Path
) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": 1, "target": "b"}\n' + '{"text": "a", "target": "b"}\n' * 20)
    told = r"all of its records that can be read have the same text or group \(1 was skipped, the first one because "
    with pytest.raises(DataError, match=told + r".*d\.jsonl:1: the field 'text' must be a string"):
        build_from(tmp_path / "d.jsonl", records="pairs", bad_lines="skip")


def test_skipped_records_are_counted_in_the_summary_also_from_the_cache(build_from: BuildFrom, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "good"}\n{"text": 3}\n{\n{"text": " "}\n' * 10)
    for reused in (False, True):
        summary = build_from(tmp_path / "d.jsonl", bad_lines="skip").summary
        assert (summary["skipped_records"], summary["blank_records"], summary["cache_reused"]) == (20, 10, reused)
    (tmp_path / "e.jsonl").write_text('{"text": "x"\n' * 3)
    with pytest.raises(
        DataError, match=r"all of its 3 records were skipped, the first one because .*e\.jsonl:1: is not valid JSON"
    ):
        build_from(tmp_path / "e.jsonl", bad_lines="skip")


def test_a_tokenizer_without_the_token_of_a_role_does_not_fit(build_from: BuildFrom, tmp_path: Path) -> None:
    write_reviews(tmp_path / "d.csv")
    build_from(tmp_path / "d.csv", tokenizer="bpe", vocab_size=300).tokenizer.save(tmp_path / "mine")
    with pytest.raises(DataError, match="does not fit: the task needs a token for the role 'mask'"):
        build_from(tmp_path / "d.csv", tokenizer=str(tmp_path / "mine"), specials=("mask",))


def test_open_records_divides_as_build_does(build_from: BuildFrom, tmp_path: Path) -> None:
    write_reviews(tmp_path / "d.csv")
    bundle = build_from(tmp_path / "d.csv", records="labelled", labels="class", validation_ratio=0.3)
    data = DataKnobs(source=str(tmp_path / "d.csv"), validation_ratio=0.3)
    sides = open_records(data, Request("labelled", "class", frame=lambda tokenizer: Frame(8)))
    assert sides.facts["fields"] == {"text": "text", "label": "label"}
    for samples, documents in ((bundle.train, sides.train), (bundle.validation, sides.validation)):
        assert documents is not None
        texts = [document.text for document in documents()]
        assert texts == [document.text for document in documents()]  # each call reads anew
        _, numbers = rows_of(samples)
        assert [int(text.removeprefix("Text ").partition(",")[0]) for text in texts] == numbers


def test_data_needs_no_torch() -> None:
    program = "import sys, trainbook.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
