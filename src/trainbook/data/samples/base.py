"""What a batch plan needs of samples, whatever they are made of."""

from __future__ import annotations

import itertools
import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from trainbook.bounded import json_text
from trainbook.bounded.arrays import load_array
from trainbook.bounded.files import open_bytes
from trainbook.data.batches.filling import Ragged
from trainbook.data.samples.frame import Frame
from trainbook.data.sources.values import Ranges
from trainbook.data.tokenizers import Tokenizer

# Where each document lies in a stream of tokens, and where it came from.


TABLE_FILE = "documents.npy"
ORIGINS_FILE = "origins.jsonl"
EXCERPT_CHARACTERS = 200
STRETCH = 1 << 20  # tokens, in which line breaks are counted at once


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

    def place(self, position: int, breaks: LineBreaks | None, most: int | None = None) -> str:
        """ "path:line" of the token at this position, as exactly as the tokenizer allows to tell. With `most`, the line
        is left out where more tokens than that lie between it and the start of the document."""
        document = self.document_at(position)
        first_line, start = int(self.first_lines[document]), int(self.starts[document])
        if first_line == 0 or breaks is None or (most is not None and position - start > most):
            return self.origin(document)
        return f"{self.origin(document)}:{first_line + breaks.between(start, position)}"


class LineBreaks:
    """How many line breaks lie between two places of a stream. Each stretch of it is counted once: a document may be
    longer than memory, and be asked about often."""

    def __init__(self, tokens: np.ndarray, tokenizer: Tokenizer) -> None:
        self._tokens, self._tokenizer = tokens, tokenizer
        self._of_token: dict[int, int] = {}
        self._sums: dict[int, list[int]] = {}  # by the place that is counted from: after each whole stretch

    def between(self, start: int, end: int) -> int:
        sums = self._sums.setdefault(start, [0])
        whole = (end - start) // STRETCH
        while len(sums) <= whole:
            begin = start + (len(sums) - 1) * STRETCH
            sums.append(sums[-1] + self._count(begin, begin + STRETCH))
        return sums[whole] + self._count(start + whole * STRETCH, end)

    def _count(self, begin: int, end: int) -> int:
        counts = np.bincount(self._tokens[begin:end])
        return sum(int(counts[token]) * self._in_token(token) for token in np.flatnonzero(counts).tolist())

    def _in_token(self, token: int) -> int:
        if token not in self._of_token:
            self._of_token[token] = self._tokenizer.decode(np.array([token])).count("\n")
        return self._of_token[token]


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


def excerpt(tokens: np.ndarray, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return ""
    text = tokenizer.decode(tokens)
    return text if len(text) <= EXCERPT_CHARACTERS else text[:EXCERPT_CHARACTERS] + "…"


class Samples(ABC):
    """An id alone determines a sample, in any epoch: its tokens and all that comes with them.

    `num_tokens` counts the positions of one epoch: a causal model has a target at each of them, any other reads a token
    there. Texts to produce are in it too.
    """

    kind: Literal["windows", "documents"]
    num_samples: int
    num_tokens: int
    equally_long: bool  # so that nothing has to be padded
    num_cut: int = 0  # samples that are too long and lose a part
    num_targets_cut: int = 0  # samples whose text to produce is too long and loses a part
    num_left_out: int = 0  # documents that are no samples, because nothing of them could be learned
    num_filtered: int = 0  # documents, or windows of the first epoch, that a filter leaves out
    filtered: Ranges = Ranges()  # of what `extent` counts: no batch may have a sample that touches them
    share_read: float = 1.0  # of the text's tokens; the rest is cut off

    def __init__(
        self, tokens: np.ndarray, frame: Frame, documents: DocumentTable | None, tokenizer: Tokenizer | None
    ) -> None:
        self.tokens = tokens
        self.frame = frame
        self.documents = documents
        self.tokenizer = tokenizer

    @abstractmethod
    def ids(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """The ids of the samples with these indices, each in its own epoch."""

    @abstractmethod
    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Tokens of each sample, with what the frame puts around it."""

    @abstractmethod
    def read(self, ids: np.ndarray) -> Ragged:
        """Their tokens, with what the frame puts around them."""

    @abstractmethod
    def describe(self, sample_id: int, *, is_quick: bool = False) -> dict[str, str]:
        """Where a sample comes from, and how it begins. `is_quick`: less exactly, where that would take seconds."""

    @abstractmethod
    def extent(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What each sample is made of, from where up to where: tokens of the stream, or a document of the table.

        To keep a sample out is to keep out all that share some of its extent, be it in another epoch.
        """

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Positions that each sample takes in a model: a causal one does not read the last token."""
        return self.lengths(ids) - self.frame.shift

    def target_lengths(self, ids: np.ndarray) -> np.ndarray | None:
        """Tokens of each text to produce, framed; None where there is none."""
        return None

    def read_targets(self, ids: np.ndarray) -> Ragged | None:
        return None

    def labels(self, ids: np.ndarray) -> np.ndarray | None:
        return None

    def read_marks(self, ids: np.ndarray) -> Ragged | None:
        """A number for each token of `read`: a tag's class, or 1 where it is learned; -1 where there is none."""
        return None

    def sample(self, index: int, epoch: int = 0) -> np.ndarray:
        return self.read(self.ids(np.array([index]), np.array([epoch]))).values

    # A memory map is pickled as the file it shows, not as its contents: workers must not receive copies.

    def __getstate__(self) -> dict[str, Any]:
        return {name: _as_path(value) for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: _as_array(value) for name, value in state.items()})


class Stream(NamedTuple):
    """Texts as tokens, one behind the other, and where each of them lies."""

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


def _as_path(value: Any) -> Any:
    if isinstance(value, Stream):
        return Stream(*map(_as_path, value))
    # A slice of a map is an ordinary array on top of it: only a whole file can be named by its path.
    if isinstance(value, np.memmap) and isinstance(value.base, mmap.mmap) and value.offset == 0:
        return _Mapped(str(value.filename), value.dtype.str, len(value))
    return value


def _as_array(value: Any) -> Any:
    if isinstance(value, Stream):
        return Stream(*map(_as_array, value))
    if isinstance(value, _Mapped):
        return np.memmap(value.path, dtype=value.dtype, mode="r", shape=(value.length,))
    return value


class _Mapped(NamedTuple):
    path: str
    dtype: str
    length: int  # which may be less than the file has
