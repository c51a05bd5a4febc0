"""Readers of each file format: Parquet and Arrow, CSV and TSV, JSONL, CoNLL, plain text."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from typing import Any

from trainbook.bounded import arrow, json_text, tables
from trainbook.data.sources.files import LONGEST_LINE_BYTES, File, bounded_lines, decode
from trainbook.data.sources.long import LongDocument
from trainbook.data.sources.records import Complain, DataRecord, with_nested
from trainbook.data.sources.values import kind_of
from trainbook.errors import BeyondBounds, DataError

# Parquet files, and the Arrow files of Hugging Face datasets: rows with types.


def read_parquet(file: File, complain: Complain) -> Iterator[DataRecord]:
    with file.open_bytes() as stream, arrow.parquet_rows(stream, file.shown) as (metadata, rows):
        yield from _records(file, metadata, rows)


def read_arrow(file: File, complain: Complain) -> Iterator[DataRecord]:
    with file.open_bytes() as stream, arrow.arrow_rows(stream, file.shown) as (metadata, rows):
        yield from _records(file, metadata, rows)


def _records(
    file: File, metadata: Mapping[bytes, bytes] | None, rows: Iterable[dict[str, Any]]
) -> Iterator[DataRecord]:
    named = _class_names(metadata)
    for number, row in enumerate(rows, start=1):
        for column, name in named.items():
            if column in row:
                row[column] = name(row[column])
        yield DataRecord(with_nested(row), f"{file.name}, row {number}")


def _class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, Callable[[Any], Any]]:
    """How the numbers of a column become names, for columns whose names Hugging Face has written beside the types."""
    try:
        features = json_text.loads((metadata or {})[b"huggingface"])["info"]["features"]
        found = {column: _names_of(feature) for column, feature in features.items()}
    except (KeyError, TypeError, ValueError):
        return {}
    return {column: name for column, name in found.items() if name is not None}


def _names_of(feature: Any) -> Callable[[Any], Any] | None:
    if isinstance(feature, list) and feature:
        inner = _names_of(feature[0])
    elif isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
        names = feature["names"]
        # Published test sets without labels have -1 everywhere.
        return lambda value: names[value] if isinstance(value, int) and 0 <= value < len(names) else None
    elif isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        inner = _names_of(feature.get("feature"))
    else:
        return None
    return None if inner is None else lambda values: None if values is None else [inner(value) for value in values]


# CSV and TSV: a row is a record, and the first row names the columns.


DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}


def read_csv(file: File, complain: Complain) -> Iterator[DataRecord]:
    """Separated by whatever of comma, semicolon and tab divides the first line into the most columns."""
    yield from _read(file, _delimiter(file), complain)


def read_tsv(file: File, complain: Complain) -> Iterator[DataRecord]:
    yield from _read(file, "\t", complain)


def header_of(file: File, is_tsv: bool) -> list[str]:
    """The names in the first row; none where there is no row."""
    delimiter = "\t" if is_tsv else _delimiter(file)
    with file.open() as stream:
        rows = tables.CsvRows(_decoded(file, stream, []), delimiter, file.shown)
        return _names(next((row for row in rows if row), []))


def _delimiter(file: File) -> str:
    with file.open() as stream:
        first_line = stream.readline(LONGEST_LINE_BYTES).decode("utf-8", errors="replace")
    return max(DELIMITERS, key=lambda delimiter: _num_columns(first_line, delimiter))


def _num_columns(line: str, delimiter: str) -> int:
    try:
        return len(next(tables.CsvRows([line], delimiter, ""), []))
    except BeyondBounds:  # what is wrong is said when the file is read
        return tables.MOST_COLUMNS + 1
    except tables.Error:
        return 0


def _read(file: File, delimiter: str, complain: Complain) -> Iterator[DataRecord]:
    with file.open() as stream:
        undecodable: list[str] = []  # what is wrong with lines of the row that is being read
        lines = _decoded(file, stream, undecodable)
        # Strict: a quotation mark in the wrong place would otherwise swallow rows without a word.
        rows = tables.CsvRows(lines, delimiter, file.shown, strict=True)
        columns: list[str] | None = None
        while True:
            # A quoted cell may hold line breaks, so a row begins behind the last line of the one before.
            number = rows.line_num + 1
            shown = f"{file.shown}:{number}"
            try:
                row = next(rows)
            except StopIteration:
                return
            except tables.Error as error:
                if undecodable:
                    raise DataError(undecodable[0]) from None
                if "field larger than" in str(error):
                    raise DataError(
                        f"{shown}: a cell must have at most {tables.MOST_CELL_CHARACTERS:,} characters, because it is "
                        "held in memory as a whole. Split the text into several rows, or write it to a text file of "
                        "its own (.txt), which is read piece by piece."
                    ) from None
                if "new-line character" in str(error):
                    raise DataError(
                        f"{shown}: has lines that end in a bare carriage return (old Mac format). Convert them first, "
                        "for example with tr '\\r' '\\n'."
                    ) from None
                if "unexpected end" in str(error):
                    raise DataError(
                        f"{shown}: a quotation mark is opened in this row and never closed, so the rest of the file is "
                        "one cell, and no row after it can be read or skipped. Close it, or double it if it is part of "
                        "the text."
                    ) from None
                raise DataError(
                    f"{shown}: cannot be read as {DELIMITERS[delimiter]}-separated cells: {error}. A cell that "
                    "contains quotation marks must be quoted, with its own quotation marks doubled."
                ) from None
            if not row:
                continue
            if undecodable:
                problem = undecodable[0]
                undecodable.clear()
                if columns is None:
                    raise DataError(problem)
                complain(problem)
                continue
            if columns is None:
                columns = _header(row, shown)
            elif len(row) != len(columns):
                law = f"{shown}: must have {len(columns)} cells, one for each column, but has {len(row)}."
                quoted = f" A cell that contains a {DELIMITERS[delimiter]} must be quoted."
                complain(law + quoted if len(row) > len(columns) else law)
            else:
                yield DataRecord(dict(zip(columns, row, strict=True)), f"{file.name}:{number}")


def _decoded(file: File, stream: BufferedReader, undecodable: list[str]) -> Iterator[str]:
    """Each line as text. What is not UTF-8 is told beside, so that the rows behind it can still be read."""
    for number, line in enumerate(bounded_lines(stream, file, _refuse), start=1):
        try:
            yield decode(line, f"{file.shown}:{number}", number)
        except DataError as error:
            undecodable.append(str(error))
            yield line.decode("utf-8", errors="replace")


def _refuse(message: str) -> None:
    raise DataError(message)


def _names(row: list[str]) -> list[str]:
    """Stripped. pandas and R write the numbers of the rows before the first column, without a name; reading them again,
    pandas gives the name."""
    names = [name.strip() for name in row]
    return ["Unnamed: 0", *names[1:]] if len(names) > 1 and not names[0] else names


def _header(row: list[str], shown: str) -> list[str]:
    names = _names(row)
    if "" in names:
        problem = f"column {names.index('') + 1} has no name"
    elif repeated := next((name for name in names if names.count(name) > 1), None):
        problem = f"two columns are named '{repeated}'"
    else:
        return names
    raise DataError(f"{shown}: the first row must name the columns, each once, but {problem}.")


# JSON: an object a line, or a whole file that is a list of objects.


MOST_VALUES = 10_000_000  # of a whole file that is a list
TOGETHER_BYTES = 1 << 18  # of lines that are parsed together


def read_jsonl(file: File, complain: Complain) -> Iterator[DataRecord]:
    with file.open() as stream:
        first = 1
        for lines in _groups(bounded_lines(stream, file, complain)):
            numbered = enumerate(_all_objects(lines, first) or _objects(lines, first, file, complain), start=first)
            for number, record in numbered:
                if record is not None:
                    yield DataRecord(with_nested(record), f"{file.name}:{number}")
            first += len(lines)


def _groups(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Lines that are parsed together."""
    group: list[bytes] = []
    size = 0
    for line in lines:
        group.append(line)
        size += len(line)
        if size >= TOGETHER_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _all_objects(lines: Sequence[bytes], first: int) -> list[Any] | None:
    """None if any of them needs a closer look: one that is no object or nested deeply, or a byte order mark."""
    if first == 1 and lines[0].startswith(codecs.BOM_UTF8):
        return None
    found = json_text.load_lines(lines)
    return found if found is not None and set(map(type, found)) == {dict} else None


def _objects(lines: Sequence[bytes], first: int, file: File, complain: Complain) -> Iterator[dict[str, Any] | None]:
    """Line by line; None for one that is blank or that was complained about."""
    for number, line in enumerate(lines, start=first):
        shown = f"{file.shown}:{number}"
        try:
            content = decode(line, shown, number)
            yield _object(_parsed(content.rstrip("\r\n"), shown), shown) if content.strip() else None
        except DataError as error:
            complain(str(error))
            yield None


def read_json(file: File, complain: Complain) -> Iterator[DataRecord]:
    """The list that a file is, or the only list in the object that it is. An object is named by its number, from 1."""
    with file.open() as stream:
        content = _parsed(decode(stream.read(), file.shown), file.shown)
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else content
    if not isinstance(content, list):
        raise DataError(
            f"{file.shown}: must be a list of JSON objects, but got {kind_of(content)}. A file with one object per "
            "line is JSONL: give it the suffix .jsonl."
        )
    for number, entry in enumerate(content, start=1):
        try:
            record = _object(entry, f"{file.shown}, entry {number}")
        except DataError as error:
            complain(str(error))
            continue
        yield DataRecord(with_nested(record), f"{file.name}, entry {number}")


def _parsed(content: str, shown: str) -> Any:
    try:
        return json_text.loads(content, shown, most_values=MOST_VALUES)
    except BeyondBounds as error:
        raise DataError(str(error)) from None
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        what = error.msg.removesuffix(" at")  # as in "Unterminated string starting at"
        raise DataError(f"{shown}: is not valid JSON: {what} at {at}.") from None


def _object(value: Any, shown: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{shown}: must be a JSON object, but got {kind_of(value)}.")
    return value


# Words and their tags, one word a line, a blank line between sentences, as the CoNLL tasks have them.


DOCUMENT_MARK = "-DOCSTART-"


def read_conll(file: File, complain: Complain) -> Iterator[DataRecord]:
    """The word is the first cell of a line, its tag the last; cells are divided by tabs, or else by blanks.

    Lines of comments (# at the beginning, where the line has no tab) and marks of documents are passed over. A sentence
    of words alone has no tags: they are to be predicted.
    """
    words: list[str] = []
    tags: list[str] = []
    begin, bad = 0, False
    with file.open() as stream:
        for number, line in enumerate(stream, start=1):
            try:
                content = decode(line, f"{file.shown}:{number}", number).rstrip("\r\n")
            except DataError as error:
                complain(str(error))
                begin, bad = begin or number, True
                continue
            if not content.strip():
                if words and not bad:
                    yield _sentence(file, begin, words, tags)
                words, tags, begin, bad = [], [], 0, False
                continue
            if content.startswith(DOCUMENT_MARK) or (content.startswith("#") and "\t" not in content and not words):
                continue
            begin = begin or number
            cells = content.split("\t") if "\t" in content else content.split()
            if len(cells) == 1 and not tags:
                words.append(content.strip())
                continue
            if len(tags) < len(words):
                complain(f"{file.shown}:{number}: has a tag, but words before it in the sentence have none.")
                bad = True
                continue
            if len(cells) < 2 or not cells[0].strip() or not cells[-1].strip():
                complain(f"{file.shown}:{number}: must have a word and a tag, but got {content.strip()!r}.")
                bad = True
                continue
            words.append(cells[0].strip())
            tags.append(cells[-1].strip())
    if words and not bad:
        yield _sentence(file, begin, words, tags)


def _sentence(file: File, begin: int, words: list[str], tags: list[str]) -> DataRecord:
    fields = {"words": words, "tags": tags} if tags else {"words": words}
    return DataRecord(fields, f"{file.name}:{begin}")


# Text files: each is one document, and a long one is read part by part whenever it is asked for.


LONG_BYTES = 1 << 24  # a text of more bytes is never held whole


def read_text(file: File, complain: Complain) -> Iterator[DataRecord]:
    with file.open() as stream:
        content = stream.read(LONG_BYTES + 1)
    if len(content) > LONG_BYTES:
        yield DataRecord({}, file.name, first_line=1, document=LongDocument(file))
    else:
        yield DataRecord({"text": decode(content, file.shown)}, file.name, first_line=1)


def read_text_leniently(file: File, complain: Complain) -> Iterator[DataRecord]:
    """For source code, some of which is of other encodings on purpose: a byte that is not UTF-8 is replaced."""
    with file.open() as stream:
        content = stream.read()
    yield DataRecord({"text": content.decode("utf-8", errors="replace")}, file.name, first_line=1)
