"""Words and their tags, one word a line, a blank line between sentences, as the CoNLL tasks have them."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.data.records import Complain, DataRecord
from trainbook.data.sources.files import File, decode
from trainbook.errors import DataError

DOCUMENT_MARK = "-DOCSTART-"


def read_conll(file: File, complain: Complain) -> Iterator[DataRecord]:
    """The word is the first cell of a line, its tag the last; cells are divided by tabs, or else by blanks.

    Lines of comments (# at the beginning, where the line has no tab) and marks of documents are passed over.
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
            if len(cells) < 2 or not cells[0].strip() or not cells[-1].strip():
                complain(f"{file.shown}:{number}: must have a word and a tag, but got {content.strip()!r}.")
                bad = True
                continue
            words.append(cells[0].strip())
            tags.append(cells[-1].strip())
    if words and not bad:
        yield _sentence(file, begin, words, tags)


def _sentence(file: File, begin: int, words: list[str], tags: list[str]) -> DataRecord:
    return DataRecord({"words": words, "tags": tags}, f"{file.name}:{begin}")
