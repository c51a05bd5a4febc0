"""A text that is too long to be held in memory: a range of a file, read anew each time."""

from __future__ import annotations

import codecs
import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from trainbook.data.sources.files import File, is_compressed, not_utf8
from trainbook.data.sources.records import Document

BLOCK_BYTES = 1 << 22  # what is read at a time


class LongDocument(Document):
    """All of a text file, or what lies between two of its bytes. `text` reads the whole of it: for who must have it."""

    file: File
    begin: int
    end: int

    def __init__(self, file: File, first_line: int = 1, begin: int = 0, end: int | None = None) -> None:
        last = _index(file).num_bytes if end is None else end
        # As the other constructor would: what is asked for by name is an attribute, and all of it stays as it is.
        others = {name: None for name in ("target", "label", "words", "tags", "learned", "group")}
        vars(self).update(others, file=file, origin=file.name, first_line=first_line, begin=begin, end=last)

    @property
    def text(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "".join(self.chunks())

    @property
    def num_characters(self) -> int:
        index = _index(self.file)
        return index.characters_before(self.end, self.file) - index.characters_before(self.begin, self.file)

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin

    def chunks(self) -> Iterator[str]:
        # A byte order mark belongs to the file, not to the text.
        decoder = codecs.getincrementaldecoder("utf-8-sig" if self.begin == 0 else "utf-8")()
        place = self.begin
        for block in blocks(self.file, self.begin, self.end):
            waiting, _ = decoder.getstate()
            try:
                text = decoder.decode(block, final=place + len(block) == self.end)
            except UnicodeDecodeError as error:
                raise not_utf8(error.object, error.start, self.file.shown, place - len(waiting)) from None
            place += len(block)
            if text:
                yield text

    @property
    def is_blank(self) -> bool:
        return all(chunk.isspace() for chunk in self.chunks())

    def digest(self, advance: Callable[[int], None] = lambda num_bytes: None) -> bytes:
        found = hashlib.sha256()
        for chunk in self.chunks():
            content = chunk.encode("utf-8")
            found.update(content)
            advance(len(content))
        return found.digest()[:16]

    def cut(self, position: int) -> tuple[Document | None, Document | None]:
        index = _index(self.file)
        place = index.byte_of(position + index.characters_before(self.begin, self.file), self.file)
        lines = index.lines_before(place, self.file) - index.lines_before(self.begin, self.file)
        head = LongDocument(self.file, self.first_line, self.begin, place) if position > 0 else None
        tail = LongDocument(self.file, self.first_line + lines, place, self.end) if place < self.end else None
        return head, tail

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LongDocument) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.file, self.begin, self.end))


def blocks(file: File, begin: int, end: int | None = None) -> Iterator[bytes]:
    with file.open() as stream:
        _skip(stream, file, begin)
        left = end - begin if end is not None else None
        while block := stream.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left)):
            yield block
            left = left - len(block) if left is not None else None


def _skip(stream: Any, file: File, count: int) -> None:
    if not is_compressed(file.name):
        stream.seek(count)
        return
    while count > 0 and (block := stream.read(min(BLOCK_BYTES, count))):
        count -= len(block)


@dataclass(frozen=True)
class _Index:
    """How many characters and lines there are before each block of a file. A byte order mark is no character."""

    characters: list[int]
    lines: list[int]
    num_bytes: int
    has_mark: bool

    def characters_before(self, place: int, file: File) -> int:
        block = min(place // BLOCK_BYTES, len(self.characters) - 1)
        between = b"".join(blocks(file, block * BLOCK_BYTES, place))
        return max(self.characters[block] + int(_begins(between).sum()) - self.has_mark, 0)

    def lines_before(self, place: int, file: File) -> int:
        block = min(place // BLOCK_BYTES, len(self.lines) - 1)
        return self.lines[block] + b"".join(blocks(file, block * BLOCK_BYTES, place)).count(b"\n")

    def byte_of(self, character: int, file: File) -> int:
        """The place of a character in the file; behind the last one, the file's end."""
        number = character + self.has_mark
        block = bisect_right(self.characters, number) - 1
        while block < len(self.characters):
            start = block * BLOCK_BYTES
            places = np.flatnonzero(_begins(b"".join(blocks(file, start, start + BLOCK_BYTES))))
            if number - self.characters[block] < len(places):
                return start + int(places[number - self.characters[block]])
            block += 1
        return self.num_bytes


def _index(file: File) -> _Index:
    try:
        found = os.stat(file.path)
    except OSError as error:
        raise file.unreadable(error) from None
    return _make_index(file, (found.st_size, found.st_mtime_ns, found.st_ino))


@lru_cache(maxsize=64)
def _make_index(file: File, state: tuple[int, ...]) -> _Index:
    characters, lines, place = [0], [0], 0
    has_mark = False
    for block in blocks(file, 0):
        has_mark |= place == 0 and block.startswith(codecs.BOM_UTF8)
        place += len(block)
        characters.append(characters[-1] + int(np.count_nonzero(_begins(block))))
        lines.append(lines[-1] + block.count(b"\n"))
    return _Index(characters, lines, place, has_mark)


def _begins(block: bytes) -> np.ndarray:
    """Whether a character begins at each byte: all bytes but 0x80 to 0xBF, which as signed numbers are the least."""
    return np.frombuffer(block, dtype=np.int8) >= -64
