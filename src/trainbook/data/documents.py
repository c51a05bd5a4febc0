"""Where each document lies in a stream of tokens, and where it came from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainbook.data.tokenizers import Tokenizer

TABLE_FILE = "documents.npy"
ORIGINS_FILE = "origins.jsonl"
EXCERPT_CHARACTERS = 200


@dataclass(frozen=True)
class DocumentTable:
    starts: np.ndarray  # position of each document's first token
    lengths: np.ndarray  # tokens of each document, without the end of text
    first_lines: np.ndarray  # the line of the file on which it begins; 0 where the origin names the line
    origins: Sequence[str] | Path  # relative origins, or the file that has one a line: it is read only to describe
    root: str = ""

    def __len__(self) -> int:
        return len(self.starts)

    def origin(self, document: int) -> str:
        if not isinstance(self.origins, Path):
            return self.root + self.origins[document]
        with self.origins.open(encoding="utf-8") as lines:
            return self.root + json.loads(next(itertools.islice(lines, document, None)))

    def source(self, document: int) -> str:
        """Where a document comes from, as it is shown."""
        return _with_line(self.origin(document), self.first_lines[document])

    def sources(self) -> Iterator[str]:
        """The same of all documents, in one reading."""
        if not isinstance(self.origins, Path):
            yield from (self.source(document) for document in range(len(self)))
            return
        with self.origins.open(encoding="utf-8") as lines:
            for origin, first_line in zip(lines, self.first_lines, strict=True):
                yield _with_line(self.root + json.loads(origin), first_line)

    def document_at(self, position: int) -> int:
        """The document that has the token at this position; an end of text belongs to what it ends."""
        return max(int(np.searchsorted(self.starts, position, side="right")) - 1, 0)

    def place(self, position: int, tokens: np.ndarray, tokenizer: Tokenizer | None) -> str:
        """ "path:line" of the token at this position, as exactly as the tokenizer allows to tell."""
        document = self.document_at(position)
        first_line, start = int(self.first_lines[document]), int(self.starts[document])
        if first_line == 0 or tokenizer is None or not tokenizer.is_lossless:
            return self.origin(document)
        line = first_line + tokenizer.decode(tokens[start:position]).count("\n")
        return f"{self.origin(document)}:{line}"


def _with_line(origin: str, first_line: int) -> str:
    """A text that begins further down in its file is shown with the line, such as the second part of a divided one."""
    return f"{origin}:{first_line}" if first_line > 1 else origin


def load_table(folder: Path, root: str) -> DocumentTable:
    columns = np.load(folder / TABLE_FILE, allow_pickle=False)
    return DocumentTable(columns[:, 0], columns[:, 1], columns[:, 2], folder / ORIGINS_FILE, root)


def excerpt(tokens: np.ndarray, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return ""
    text = tokenizer.decode(tokens)
    return text if len(text) <= EXCERPT_CHARACTERS else text[:EXCERPT_CHARACTERS] + "…"
