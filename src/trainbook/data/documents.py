"""Where each document lies in a stream of tokens, and where it came from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
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


def load_table(folder: Path, root: str) -> DocumentTable:
    columns = np.load(folder / TABLE_FILE, allow_pickle=False)
    return DocumentTable(columns[:, 0], columns[:, 1], columns[:, 2], folder / ORIGINS_FILE, root)


def excerpt(tokens: np.ndarray, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return ""
    text = tokenizer.decode(tokens)
    return text if len(text) <= EXCERPT_CHARACTERS else text[:EXCERPT_CHARACTERS] + "…"
