"""Records of each kind of file, of saved datasets and of functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from trainbook.data.sources import Source, open_source
from trainbook.data.sources.fields import FieldSpec
from trainbook.data.sources.records import Document, LabelKind
from trainbook.errors import DataError, MissingExtra


def labelled(name: Path | str, labels: LabelKind = "class", **knobs: Any) -> list[tuple[str, str, Any]]:
    source = open_source(str(name), FieldSpec("labelled", labels, **knobs))
    return [(document.origin, document.text, document.label) for document in source.documents()]


def tagged(name: Path | str, **knobs: Any) -> list[Document]:
    return list(open_source(str(name), FieldSpec("tagged", **knobs)).documents())


def message(name: Path | str, wanted: FieldSpec = FieldSpec("labelled", "class")) -> str:  # noqa: B008
    with pytest.raises(DataError) as caught:
        list(open_source(str(name), wanted).documents())
    return str(caught.value).removesuffix(" To skip such records, set data.bad_lines=skip.")


def skipping(name: Path, **knobs: Any) -> tuple[list[str], Source]:
    source = open_source(str(name), FieldSpec(bad_lines="skip", **knobs))
    return [document.origin for document in source.documents()], source


# CSV and TSV


def test_a_row_with_too_few_cells_says_how_to_leave_it_out(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text,label\none,a\ntwo\n")
    with pytest.raises(DataError, match=r"d\.csv:3: .* To skip such records, set data\.bad_lines=skip\.$"):
        labelled(tmp_path / "d.csv")


def test_a_row_is_a_record_and_its_line_is_where_it_begins(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text('text,label\n"one\nand ""two""\n",a\n\nthree,b\n"f\nour",a\n')
    assert labelled(tmp_path / "d.csv") == [
        ("d.csv:2", 'one\nand "two"\n', "a"),
        ("d.csv:6", "three", "b"),
        ("d.csv:7", "f\nour", "a"),
    ]


def test_cells_may_be_separated_by_tabs_or_semicolons_and_files_come_from_windows(tmp_path: Path) -> None:
    (tmp_path / "d.tsv").write_text("text\tlabel\na, b\tx\n")
    (tmp_path / "e.csv").write_bytes(b"\xef\xbb\xbftext;label\r\na, b;x\r\n")
    assert labelled(tmp_path / "d.tsv") == [("d.tsv:2", "a, b", "x")]
    assert labelled(tmp_path / "e.csv") == [("e.csv:2", "a, b", "x")]


def test_lines_that_end_in_a_carriage_return_alone_are_named(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes(b"text,label\rone,a\rtwo,b\r")
    assert message(tmp_path / "d.csv") == (
        rf"{tmp_path}/d.csv:1: has lines that end in a bare carriage return (old Mac format). Convert them first, for "
        r"example with tr '\r' '\n'."
    )


def test_the_names_of_columns_may_be_longer_than_csv_allows_by_itself(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text,label," + "x" * 200_000 + "\none,a,\n")
    assert labelled(tmp_path / "d.csv") == [("d.csv:2", "one", "a")]


def test_a_row_that_is_not_utf8_is_a_bad_one_among_others(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes(b'text,label\none,a\n"caf\xe9\nau lait",b\nthree,c\n')
    assert message(tmp_path / "d.csv") == (
        f"{tmp_path}/d.csv:3: must be UTF-8 text, but has the byte 0xe9 at position 4. Convert the file first, "
        f"for example from Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 '{tmp_path}/d.csv' > '{tmp_path}/d-utf8.csv'"
    )
    origins, source = skipping(tmp_path / "d.csv")
    assert origins == ["d.csv:2", "d.csv:5"] and source.passed.bad == 1
    (tmp_path / "e.csv").write_bytes(b"te\xe9xt,label\none,a\n")
    assert "e.csv:1: must be UTF-8" in message(tmp_path / "e.csv", FieldSpec(bad_lines="skip"))
    (tmp_path / "f.conll").write_bytes(b"one A\n\ncaf\xe9 B\ntwo A\n\nthree A\n")
    assert "f.conll:3: must be UTF-8" in message(tmp_path / "f.conll", FieldSpec("tagged"))
    found = tagged(tmp_path / "f.conll", bad_lines="skip")
    assert [document.text for document in found] == ["one", "three"]


def test_a_cell_may_be_longer_than_csv_allows_by_itself(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("text,label\n" + "x" * 200_000 + ",a\n")
    assert len(labelled(tmp_path / "d.csv")[0][1]) == 200_000


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("text,label\na,b\na\n", ":3: must have 2 cells, one for each column, but has 1."),
        (
            "text,label\na,b\na,b,c\n",
            ":3: must have 2 cells, one for each column, but has 3. A cell that contains a comma must be quoted.",
        ),
        ("text,,label\n", ":1: the first row must name the columns, each once, but column 2 has no name."),
        ("text,text\n", ":1: the first row must name the columns, each once, but two columns are named 'text'."),
        (
            'text,label\n"a" b,c\n',
            ":2: cannot be read as comma-separated cells: ',' expected after '\"'. A cell that contains quotation "
            "marks must be quoted, with its own quotation marks doubled.",
        ),
        (
            'text,label\na,b\n"a,b\nc,d\n',
            ":3: a quotation mark is opened in this row and never closed, so the rest of the file is one cell, and no "
            "row after it can be read or skipped. Close it, or double it if it is part of the text.",
        ),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "d.csv").write_text(content)
    assert message(tmp_path / "d.csv") == f"{tmp_path}/d.csv{problem}"


def test_a_first_column_without_a_name_is_the_index_that_pandas_and_r_write(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(",text,label\n0,one,a\n1,two,b\n")
    assert [record[1:] for record in labelled(tmp_path / "d.csv")] == [("one", "a"), ("two", "b")]
    (tmp_path / "r.csv").write_text('"","sentence","label"\n"1","one","a"\n"2","two","b"\n')
    assert [record[1:] for record in labelled(tmp_path / "r.csv")] == [("one", "a"), ("two", "b")]


def test_a_row_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes(b"text,label\ncaf\xe9,b\n")
    assert message(tmp_path / "d.csv").startswith(f"{tmp_path}/d.csv:2: must be UTF-8 text, but has the byte 0xe9")


# Records that are left out only when asked


def test_bad_records_are_skipped_and_counted_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(
        b'{"text": "a"}\n{"text": \n[1]\n{"text": 3}\n{"other": "x"}\n{"text": "\xff"}\n{"text": " "}\n{"text": "b"}\n'
    )
    origins, source = skipping(path)
    assert origins == ["d.jsonl:1", "d.jsonl:8"]
    assert (source.passed.bad, source.passed.blank) == (5, 1)
    assert list(source.documents()) and source.passed.bad == 5  # counted anew
    (tmp_path / "d.csv").write_text("text,n\na\nb,1\n")
    assert skipping(tmp_path / "d.csv")[0] == ["d.csv:3"]
    (tmp_path / "d.conll").write_text("a X\nb\n\nc Y\n")
    source = open_source(str(tmp_path / "d.conll"), FieldSpec("tagged", bad_lines="skip"))
    assert [document.words for document in source.documents()] == [("c",)]


# JSON


def test_a_json_file_is_a_list_of_objects_or_has_one(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"text": "one", "label": 1}, {"text": "two", "label": 0}]))
    (tmp_path / "b.json").write_text(json.dumps({"version": 2, "data": [{"text": "one", "label": 1}]}))
    assert labelled(tmp_path / "a.json") == [("a.json, entry 1", "one", "1"), ("a.json, entry 2", "two", "0")]
    assert labelled(tmp_path / "b.json") == [("b.json, entry 1", "one", "1")]
    (tmp_path / "c.json").write_text('{"text": "one"}')
    assert message(tmp_path / "c.json") == (
        f"{tmp_path}/c.json: must be a list of JSON objects, but got an object. A file with one object per line is "
        "JSONL: give it the suffix .jsonl."
    )
    (tmp_path / "d.json").write_text('[{"text": "a", "label": "b"},\n 3]')
    assert message(tmp_path / "d.json") == f"{tmp_path}/d.json, entry 2: must be a JSON object, but got a number."


# CoNLL


def test_sentences_of_a_conll_file_end_at_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "d.conll").write_text(
        "-DOCSTART- -X- -X- O\n\n# sent 1\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\n#\thash\tO\nx\ty z\tO"
    )
    first, second = tagged(tmp_path / "d.conll")
    assert first == Document("EU rejects", "d.conll:4", 0, words=("EU", "rejects"), tags=("B-ORG", "O"))
    assert (second.words, second.tags, second.origin) == (("#", "x"), ("O", "O"), "d.conll:8")
    (tmp_path / "e.conll").write_text("EU B-ORG\nrejects\n")
    assert message(tmp_path / "e.conll", FieldSpec("tagged")) == (
        f"{tmp_path}/e.conll:2: must have a word and a tag, but got 'rejects'."
    )


def test_some_words_of_a_sentence_with_tags_and_some_without_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "e.conll").write_text("EU\nrejects O\n")
    assert message(tmp_path / "e.conll", FieldSpec("tagged")) == (
        f"{tmp_path}/e.conll:2: has a tag, but words before it in the sentence have none."
    )


def test_a_word_that_is_a_hash_is_no_comment_within_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "d.conll").write_text("# a comment\nwe O\n#1 CARD\n# SYM\n\n")
    (found,) = open_source(str(tmp_path / "d.conll"), FieldSpec("tagged")).documents()
    assert (found.words, found.tags) == (("we", "#1", "#"), ("O", "CARD", "SYM"))


# Parquet and Hugging Face datasets


@pytest.fixture
def rows() -> dict[str, list[Any]]:
    return {
        "text": ["one", "two", "three"],
        "label": [1, 0, 1],
        "tokens": [["a", "b"], ["c"], []],
        "ner_tags": [[0, 1], [1], []],
    }


def test_a_parquet_file_is_read_row_by_row(
    tmp_path: Path, rows: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainbook.bounded.arrow.ROWS_AT_A_TIME", 2)
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "d.parquet")
    assert labelled(tmp_path / "d.parquet") == [
        ("d.parquet, row 1", "one", "1"),
        ("d.parquet, row 2", "two", "0"),
        ("d.parquet, row 3", "three", "1"),
    ]
    assert [document.tags for document in tagged(tmp_path / "d.parquet")] == [("0", "1"), ("1",)]
    (tmp_path / "e.parquet").write_bytes(b"nothing")
    assert message(tmp_path / "e.parquet").startswith(f"{tmp_path}/e.parquet: cannot be read as Parquet: ")


def test_without_pyarrow_the_message_has_the_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.parquet").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"needs the package 'pyarrow'.*pip install 'trainbook\[data\]'"):
        list(open_source(str(tmp_path / "d.parquet")).documents())


@pytest.fixture
def saved(tmp_path: Path, rows: dict[str, list[Any]]) -> Path:
    """A dataset as the datasets package saves it, with names for its numbers."""
    import datasets

    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["bad", "good"]),
            "tokens": datasets.Sequence(datasets.Value("string")),
            "ner_tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-ORG"])),
        }
    )
    train = datasets.Dataset.from_dict(rows, features=features)
    test = datasets.Dataset.from_dict({name: values[:1] for name, values in rows.items()}, features=features)
    train.save_to_disk(str(tmp_path / "one"), num_shards=2)
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(str(tmp_path / "several"))
    train.to_parquet(str(tmp_path / "d.parquet"))
    return tmp_path


def test_a_saved_dataset_has_the_names_of_its_classes(saved: Path) -> None:
    expected = [("one", "good"), ("two", "bad"), ("three", "good")]
    for name in ("one", "several", "several#train", "d.parquet"):
        assert [(text, label) for _, text, label in labelled(saved / name)] == expected
    assert [text for _, text, _ in labelled(saved / "several#test")] == ["one"]
    assert labelled(saved / "one")[2][0] == "data-00001-of-00002.arrow, row 1"
    assert [document.tags for document in tagged(saved / "one")] == [("O", "B-ORG"), ("B-ORG",)]


def test_a_split_that_is_not_there_names_those_that_are(saved: Path) -> None:
    assert message(saved / "several#tset") == (
        f"data.source: the dataset '{saved}/several' has no split 'tset'; it has '{saved}/several#train', "
        f"'{saved}/several#test'. Did you mean 'test'?"
    )
    assert message(saved / "one#train") == (
        f"data.source: the dataset '{saved}/one' has no splits, so '#train' cannot select one."
    )


def test_the_fingerprint_of_a_dataset_is_of_its_rows(saved: Path) -> None:
    import datasets

    before = open_source(str(saved / "one")).fingerprint()
    datasets.Dataset.load_from_disk(str(saved / "one")).save_to_disk(str(saved / "again"), num_shards=2)
    assert open_source(str(saved / "again")).fingerprint() == before
    datasets.Dataset.load_from_disk(str(saved / "one")).select([0, 1]).save_to_disk(str(saved / "less"), num_shards=2)
    assert open_source(str(saved / "less")).fingerprint() != before


# Functions


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module of its own name in the current directory."""
    name = f"own_source_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(
        "import numpy, random\n"
        "def texts():\n    yield 'one'\n    yield 'two'\n"
        "def records():\n    return [{'text': 'one', 'label': numpy.int64(3)}, {'text': 'two', 'label': 4}]\n"
        "def numbers():\n    return [1]\n"
        "def failing():\n    yield 'one'\n    raise ValueError('no more')\n"
        "def changing():\n    return [str(random.random())]\n"
        "def one_text():\n    return 'text'\n"
        "value = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_function_gives_texts_or_records(module: str) -> None:
    source = open_source(f"{module}:texts")
    assert [(source.root + document.origin, document.text) for document in source.documents()] == [
        (f"{module}:texts record 1", "one"),
        (f"{module}:texts record 2", "two"),
    ]
    assert labelled(f"{module}:records") == [("record 1", "one", "3"), ("record 2", "two", "4")]
    assert source.fingerprint() == open_source(f"{module}:texts").fingerprint()
    assert source.fingerprint() != open_source(f"{module}:records").fingerprint()


def test_mistakes_in_a_function_are_named(module: str) -> None:
    assert message(f"{module}:text") == (
        f"data.source: there is no 'text' in {module}, which '{module}:text' asks for. Did you mean 'texts'?"
    )
    assert message(f"{module}:value") == (
        f"data.source: '{module}:value' must be a function without arguments, but is a number."
    )
    assert (
        message(f"{module}:numbers") == f"{module}:numbers record 1: must be a string or a mapping, but got a number."
    )
    assert message(f"{module}:one_text", FieldSpec()) == (
        f"data.source: '{module}:one_text' must return an iterable of strings or mappings, but returned a string."
    )
    failing = message(f"{module}:failing", FieldSpec())
    assert failing.startswith(f"data.source: '{module}:failing' raised an error:")
    assert f'{module}.py", line 11' in failing and failing.endswith("ValueError: no more")


# Plain text where records are needed


def test_plain_text_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert message(tmp_path / "a.txt") == (
        f"data.source: '{tmp_path}/a.txt' is plain text, but the task needs a label for each text: records of a "
        "JSONL, CSV, TSV or Parquet file, a Hugging Face dataset or a Python function."
    )


def test_a_tagging_task_is_told_that_a_text_file_may_be_a_conll_file_of_another_name(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("-DOCSTART- -X- O O\n\nAnna NNP B-NP B-PER\nsleeps VBZ B-VP O\n")
    told = message(tmp_path / "train.txt", FieldSpec("tagged"))
    assert told == (
        f"data.source: '{tmp_path}/train.txt' is plain text, but the task needs a tag for each word: records of a "
        "CoNLL, JSONL, CSV, TSV or Parquet file, a Hugging Face dataset or a Python function. If each line has a word "
        "and its tag, give the file a name that ends in .conll."
    )
