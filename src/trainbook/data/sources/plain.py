"""Text files: each is one document, and a long one is read part by part whenever it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.data.records import Complain, DataRecord
from trainbook.data.sources.files import File, decode
from trainbook.data.sources.long import LongDocument

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
