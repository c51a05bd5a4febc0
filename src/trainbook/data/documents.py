"""Where each document lies in a stream of tokens, and where it came from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.arrays import load_array
from trainbook.bounded.files import open_bytes
from trainbook.data.tokenizers import Tokenizer

TABLE_FILE = "documents.npy"
ORIGINS_FILE = "origins.jsonl"
EXCERPT_CHARACTERS = 200
DECODED_TOKENS = 1 << 20  # at a time, to count lines: a document may be longer than memory


@dataclass(frozen=True)
class DocumentTable:
    starts: np.ndarray  # position of each document's first token
    lengths: np.ndarray  # tokens of each document, without the end of text
    first_lines: np.ndarray  # the line of the file on which it begins; 0 where the origin names the line
    origins: Sequence[str] | Sequence[Path]  # relative, or files with one a line: read only to describe
    root: str = ""

    def __len__(self) -> int:
        return len(self.starts)

    def origin(self, document: int) -> str:
        line = next(itertools.islice(self._lines(), document, None))
        return self.root + (json_text.loads(line) if isinstance(line, bytes) else line)

    def source(self, document: int) -> str:
        """Where a document comes from, as it is shown."""
        return _with_line(self.origin(document), self.first_lines[document])

    def sources(self) -> Iterator[str]:
        """The same of all documents, in one reading."""
        for origin, first_line in zip(self._origins(), self.first_lines, strict=True):
            yield _with_line(self.root + origin, first_line)

    def _origins(self) -> Iterator[str]:
        return (json_text.loads(line) if isinstance(line, bytes) else line for line in self._lines())

    def _lines(self) -> Iterator[str | bytes]:
        """Those of files are not parsed: the one that is asked for may be the millionth."""
        for origin in self.origins:
            if isinstance(origin, Path):
                with open_bytes(origin) as lines:
                    yield from lines
            else:
                yield origin

    def document_at(self, position: int) -> int:
        """The document that has the token at this position; an end of text belongs to what it ends."""
        return max(int(np.searchsorted(self.starts, position, side="right")) - 1, 0)

    def place(self, position: int, tokens: np.ndarray, tokenizer: Tokenizer | None) -> str:
        """ "path:line" of the token at this position, as exactly as the tokenizer allows to tell."""
        document = self.document_at(position)
        first_line, start = int(self.first_lines[document]), int(self.starts[document])
        if first_line == 0 or tokenizer is None or not tokenizer.is_lossless:
            return self.origin(document)
        parts = (tokens[at : min(at + DECODED_TOKENS, position)] for at in range(start, position, DECODED_TOKENS))
        line = first_line + sum(tokenizer.decode(part).count("\n") for part in parts)
        return f"{self.origin(document)}:{line}"


def _with_line(origin: str, first_line: int) -> str:
    """A text that begins further down in its file is shown with the line, such as the second part of a divided one."""
    return f"{origin}:{first_line}" if first_line > 1 else origin


class StoredTable(DocumentTable):
    """The documents of several folders, one behind the other. The table is read when it is first asked for: who only
    cuts windows out of a stream never does."""

    _folders: list[Path]
    _num_tokens: list[int]

    def __init__(self, folders: Sequence[Path], num_tokens: Sequence[int], root: str) -> None:
        vars(self).update(_folders=list(folders), _num_tokens=list(num_tokens), root=root)

    @cached_property
    def _columns(self) -> np.ndarray:
        columns, begin = [np.empty((0, 3), dtype=np.int64)], 0
        for folder, num_tokens in zip(self._folders, self._num_tokens, strict=True):
            columns.append(load_array(folder / TABLE_FILE) + np.array([begin, 0, 0]))
            begin += num_tokens
        return np.concatenate(columns)

    @cached_property
    def starts(self) -> np.ndarray:
        return self._columns[:, 0]

    @cached_property
    def lengths(self) -> np.ndarray:
        return self._columns[:, 1]

    @cached_property
    def first_lines(self) -> np.ndarray:
        return self._columns[:, 2]

    @cached_property
    def origins(self) -> list[Path]:
        return [folder / ORIGINS_FILE for folder in self._folders]


def load_table(folder: Path, root: str) -> DocumentTable:
    return StoredTable([folder], [0], root)


def excerpt(tokens: np.ndarray, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return ""
    text = tokenizer.decode(tokens)
    return text if len(text) <= EXCERPT_CHARACTERS else text[:EXCERPT_CHARACTERS] + "…"
