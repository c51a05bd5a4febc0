"""JSON: an object a line, or a whole file that is a list of objects."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trainbook.bounded import json_text
from trainbook.data.records import Complain, DataRecord
from trainbook.data.sources.files import File, bounded_lines, decode
from trainbook.data.values import kind_of
from trainbook.errors import BeyondBounds, DataError

MOST_VALUES = 10_000_000  # of a whole file that is a list
TOGETHER_BYTES = 1 << 18  # of lines that are parsed together


def read_jsonl(file: File, complain: Complain) -> Iterator[DataRecord]:
    with file.open() as stream:
        first = 1
        for lines in _groups(bounded_lines(stream, file, complain)):
            numbered = enumerate(_all_objects(lines, first) or _objects(lines, first, file, complain), start=first)
            for number, record in numbered:
                if record is not None:
                    yield DataRecord(record, f"{file.name}:{number}")
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
        yield DataRecord(record, f"{file.name}, entry {number}")


def _parsed(content: str, shown: str) -> Any:
    try:
        return json_text.loads(content, shown, most_values=MOST_VALUES)
    except BeyondBounds as error:
        raise DataError(str(error)) from None
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise DataError(f"{shown}: must be a JSON object, but got {error.msg} at {at}.") from None


def _object(value: Any, shown: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{shown}: must be a JSON object, but got {kind_of(value)}.")
    return value
