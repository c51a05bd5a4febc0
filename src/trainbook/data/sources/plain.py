"""Text files: each is one document."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.data.records import Complain, Record
from trainbook.data.sources.files import File, decode


def read_text(file: File, complain: Complain) -> Iterator[Record]:
    with file.open() as stream:
        content = stream.read()
    yield Record({"text": decode(content, file.shown)}, file.name, first_line=1)


def read_text_leniently(file: File, complain: Complain) -> Iterator[Record]:
    """For source code, some of which is of other encodings on purpose: a byte that is not UTF-8 is replaced."""
    with file.open() as stream:
        content = stream.read()
    yield Record({"text": content.decode("utf-8", errors="replace")}, file.name, first_line=1)
