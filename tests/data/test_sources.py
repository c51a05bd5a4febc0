from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainbook.data.sources import open_source
from trainbook.data.sources.fields import FieldSpec
from trainbook.data.sources.reader import FileReader
from trainbook.errors import DataError


def documents(name: Path | str, text_field: str | None = None) -> list[tuple[str, str]]:
    source = open_source(str(name), FieldSpec(text_field=text_field))
    return [(document.origin, document.text) for document in source.documents()]


def message(name: Path | str, text_field: str | None = None, knob: str = "data.source") -> str:
    with pytest.raises(DataError) as caught:
        list(open_source(str(name), FieldSpec(text_field=text_field), knob).documents())
    return str(caught.value).removesuffix(" To skip such records, set data.bad_lines=skip.")


def test_the_standard_library_is_its_own_sorted_source_without_tests_and_packages() -> None:
    source = open_source("builtin:pystdlib")
    assert isinstance(source.reader, FileReader)
    names = [file.name for file in source.reader.files]
    assert names == sorted(names)
    assert {"abc.py", "json/decoder.py"} <= set(names)
    parts = {part for name in names for part in name.split("/")[:-1]}
    assert not parts & {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    assert all(name.endswith(".py") for name in names)
    json_decoder = next(document for document in source.documents() if document.origin == "json/decoder.py")
    assert "class JSONDecoder" in json_decoder.text
    assert source.root + json_decoder.origin == "builtin:pystdlib/json/decoder.py"


def test_a_text_file_is_one_document_kept_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("é\r\nb\n".encode())
    assert documents(tmp_path / "a.txt") == [("a.txt", "é\r\nb\n")]


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfabc")
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "x"}\n')
    assert documents(tmp_path) == [("a.txt", "abc"), ("b.jsonl:1", "x")]


def test_a_folder_is_all_files_of_known_kinds_below_it_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "z.md").write_text("zed")
    (tmp_path / "b" / "image.png").write_bytes(b"\xff")
    (tmp_path / "c.py").write_text("see")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{"text": "three"}\n')
    expected = [("a.jsonl:1", "one"), ("a.jsonl:3", "three"), ("b/z.md", "zed"), ("c.py", "see")]
    assert documents(tmp_path) == expected
    assert documents(f"{tmp_path}/") == expected


def test_a_glob_takes_only_what_matches_relative_to_its_fixed_part(tmp_path: Path) -> None:
    for name in ("x/1.txt", "x/y/2.txt", "x/3.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    assert documents(tmp_path / "x" / "*.txt") == [("1.txt", "x/1.txt")]
    assert documents(f"{tmp_path}/**/*.txt") == [("x/1.txt", "x/1.txt"), ("x/y/2.txt", "x/y/2.txt")]
    assert open_source(f"{tmp_path}/x/*.txt").root == f"{tmp_path}/x/"
    assert message(f"{tmp_path}/*.none") == f"data.source: no file matches '{tmp_path}/*.none'."


def test_a_glob_in_the_working_folder_shows_plain_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.txt").write_text("1")
    monkeypatch.chdir(tmp_path)
    source = open_source("*.txt")
    assert source.root == ""
    assert [document.origin for document in source.documents()] == ["one.txt"]


def test_blank_documents_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text(" \n\t")
    (tmp_path / "c.jsonl").write_text('{"text": ""}\n{"text": "x"}\n')
    assert documents(tmp_path) == [("c.jsonl:2", "x")]


def test_an_unknown_built_in_names_the_nearest() -> None:
    text = message("builtin:pystdlb")
    assert text.startswith(
        "data.source: unknown built-in source 'builtin:pystdlb'; the built-in ones are builtin:pystdlib, "
    )
    assert text.endswith(" Did you mean 'builtin:pystdlib'?")
    assert message("pystdlib") == "data.source: 'pystdlib' does not exist. Did you mean 'builtin:pystdlib'?"


def test_a_missing_file_names_the_similar_one(tmp_path: Path) -> None:
    (tmp_path / "shakespeare.txt").write_text("x")
    assert message(tmp_path / "shakspeare.txt", knob="data.validation") == (
        f"data.validation: '{tmp_path}/shakspeare.txt' does not exist. Did you mean '{tmp_path}/shakespeare.txt'?"
    )
    assert message(tmp_path / "other") == f"data.source: '{tmp_path}/other' does not exist."
    assert message(tmp_path / "no" / "x.txt") == (
        f"data.source: '{tmp_path}/no/x.txt' does not exist. There is no folder '{tmp_path}/no' either."
    )


def test_a_folder_without_text_says_what_it_looked_for(tmp_path: Path) -> None:
    assert message(tmp_path) == (
        f"data.source: the folder '{tmp_path}' has no file of these types: *.txt, *.md, *.py, *.jsonl, *.ndjson, "
        "*.csv, *.tsv, *.parquet, *.conll."
    )


def test_a_file_that_is_not_utf8_is_named_with_the_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert message(tmp_path / "a.txt") == (
        f"{tmp_path}/a.txt: must be UTF-8 text, but has the byte 0xe9 at position 3. "
        f"Convert the file first, for example from Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 '{tmp_path}/a.txt' > "
        f"'{tmp_path}/a-utf8.txt'"
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            '{"txt": "a", "title": "b"}',
            "has no field 'text' (data.text_field); its fields are: 'txt', 'title'. Did you mean 'txt'?",
        ),
        ("{}", "has no field 'text' (data.text_field); its fields are: none."),
        ('{"text": 5}', "the field 'text' must be a string, but got a number."),
        ('{"text": null}', "the field 'text' must be a string, but got null."),
        ('["text"]', "must be a JSON object, but got a list."),
        ('{"text": }', "is not valid JSON: Expecting value at column 10."),
        ('{"text": "a', "is not valid JSON: Unterminated string starting at column 10."),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(f'{{"text": "fine"}}\n\n{line}\n')
    assert message(path) == f"{path}:3: {problem}"


def test_the_text_field_can_have_another_name_and_half_a_surrogate_pair(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"body": "a\ud83db 👍"}) + "\n")
    assert documents(path, "body") == [("d.jsonl:1", "a\ufffdb 👍")]


def test_the_fingerprint_depends_on_names_and_contents_only(tmp_path: Path) -> None:
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.txt").write_text("same")
    here, there = (open_source(str(tmp_path / place)) for place in ("here", "there"))
    before = here.fingerprint()
    other_field = open_source(str(tmp_path / "here"), FieldSpec(text_field="other"))
    assert before == there.fingerprint() == other_field.fingerprint()
    (tmp_path / "here" / "a.txt").write_text("SAME")
    assert here.fingerprint() != before


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainbook.data.sources.files.LONGEST_LINE_BYTES", 1000)
    monkeypatch.setattr("trainbook.data.sources.formats.LONGEST_LINE_BYTES", 1000)
    monkeypatch.setattr("trainbook.bounded.tables.MOST_CELL_CHARACTERS", 2000)


def test_a_line_that_is_too_long_for_memory_is_refused_or_skipped(tmp_path: Path, short_lines: None) -> None:
    path = tmp_path / "a.jsonl"
    texts = ["first", "x" * 5000, "third"]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert message(path).startswith(f"{path}:2: a line must be at most 0 MB long") and ".txt" in message(path)
    source = open_source(str(path), FieldSpec(bad_lines="skip"))
    assert [(document.origin, document.text) for document in source.documents()] == [
        ("a.jsonl:1", "first"),
        ("a.jsonl:3", "third"),
    ]
    assert source.passed.bad == 1


@pytest.mark.parametrize("separator", [" ", "\n"])
def test_a_cell_that_is_too_long_for_memory_is_refused(tmp_path: Path, short_lines: None, separator: str) -> None:
    path = tmp_path / "a.csv"
    cell = separator.join(["word"] * 1000)
    path.write_text(f'text,number\n"{cell}",1\n')
    assert "must" in message(path) and "held in memory as a whole" in message(path) and ".txt" in message(path)


def test_lines_are_read_alike_together_and_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = ["", "  ", '{"text": "a"},{"text": "b"}', '{"text": ["a"', "[1]", '{"text": "\\ud800é"}', '{"text": 5}']
    odd += ['{"text": "x", "n": ' + "[" * 60 + "]" * 60 + "}", '{"text": "n", "n": ' + "1" * 400 + "}", "\x00"]
    lines = [json.dumps({"text": f"text {number}"}) for number in range(300)]
    for place, line in enumerate(odd):
        lines[30 * place + 7] = line
    path = tmp_path / "a.jsonl"
    path.write_bytes("\ufeff".encode() + "\n".join(lines).encode() + b'\n{"text": "\xff"}\n{"text": "last"}')

    def read() -> tuple[list[tuple[str, str]], list[tuple[str, list[str]]]]:
        source = open_source(str(path), FieldSpec(bad_lines="skip"))
        found = [(document.origin, document.text) for document in source.documents()]
        return found, [(bad.reason, bad.places) for bad in source.passed.reasons.values()]

    monkeypatch.setattr("trainbook.data.sources.formats.TOGETHER_BYTES", 500)
    together = read()
    monkeypatch.setattr("trainbook.bounded.json_text.load_lines", lambda lines: None)
    assert together == read() and len(together[0]) > 280 and together[0][-1] == ("a.jsonl:302", "last")


@pytest.mark.parametrize("source", ["", "/**/*.jsonl"])
def test_what_runs_and_studies_have_recorded_is_no_data(tmp_path: Path, source: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a text of its own"}\n')
    for place in ("runs/one", "study/trials/1"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        for name in ("manifest.json", "events.jsonl", "metrics.jsonl"):
            (folder / name).write_text('{"text": "not data"}\n')
    (tmp_path / "study" / "base.yaml").touch()
    (tmp_path / "study" / "question.json").write_text("{}")
    (tmp_path / "study" / "rows.jsonl").write_text('{"text": "not data"}\n')
    found = open_source(f"{tmp_path}{source}", FieldSpec())
    assert [document.text for document in found.documents()] == ["a text of its own"]
    if source:  # what the user names is read
        named = open_source(f"{tmp_path}/runs/one/*.jsonl", FieldSpec())
        assert len(list(named.documents())) == 2
