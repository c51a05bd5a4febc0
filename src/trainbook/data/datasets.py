"""Samples of a token stream: windows of equal length, or one document each. A sample is known by its id."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from trainbook.data.documents import DocumentTable, excerpt
from trainbook.data.seeding import generator
from trainbook.data.tokenizers import Tokenizer
from trainbook.errors import DataError

# With more windows than this, training gives up one of them so that each epoch can cut the stream elsewhere.
MIN_WINDOWS_TO_MOVE = 16


class Samples(ABC):
    """What a batch plan needs. An id alone determines the tokens of a sample, in any epoch."""

    num_samples: int
    num_tokens: int  # targets in one epoch

    def __init__(
        self, tokens: np.ndarray, max_seq_length: int, documents: DocumentTable | None, tokenizer: Tokenizer | None
    ) -> None:
        self.tokens = tokens
        self.max_seq_length = max_seq_length
        self.documents = documents
        self.tokenizer = tokenizer

    @abstractmethod
    def ids(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """The ids of the samples with these indices, each in its own epoch."""

    @abstractmethod
    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """Tokens of each sample; one less of them are targets."""

    @abstractmethod
    def read(self, ids: np.ndarray, width: int) -> np.ndarray:
        """Their tokens as int64, one row each, padded with 0 on the right to the width."""

    @abstractmethod
    def describe(self, sample_id: int) -> dict[str, str]:
        """Where a sample comes from, and how it begins."""

    def sample(self, index: int, epoch: int = 0) -> np.ndarray:
        ids = self.ids(np.array([index]), np.array([epoch]))
        return self.read(ids, int(self.lengths(ids)[0]))[0]

    # A memory map is pickled as the file it shows, not as its contents: workers must not receive copies.

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        # A slice of a map is an ordinary array on top of it: only a whole file can be named by its path.
        if isinstance(self.tokens, np.memmap) and isinstance(self.tokens.base, mmap.mmap) and self.tokens.offset == 0:
            state["tokens"] = (str(self.tokens.filename), self.tokens.dtype.str)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(self.tokens, tuple):
            path, dtype = self.tokens
            self.tokens = np.memmap(path, dtype=dtype, mode="r")


class TokenWindows(Samples):
    """Windows of max_seq_length + 1 tokens that overlap by one, so every token but the first is a target once.

    Training drops a remainder that is shorter; with `shuffle` and enough windows, each epoch cuts the stream at
    another offset. Evaluation always cuts at 0 and keeps the remainder. The id of a sample is its start in the stream.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        max_seq_length: int,
        *,
        shuffle: bool = False,
        evaluation: bool = False,
        seed: int = 0,
        documents: DocumentTable | None = None,
        tokenizer: Tokenizer | None = None,
        name: str = "the text",
    ) -> None:
        super().__init__(tokens, max_seq_length, documents, tokenizer)
        num_targets = len(tokens) - 1
        if num_targets < 1:
            raise DataError(
                f"{name} must have at least 2 tokens, to read one and predict the next, but has {len(tokens)}."
            )
        whole, remainder = divmod(num_targets, max_seq_length)
        self.seed = seed
        self.num_offsets = 1
        if evaluation or whole == 0:
            self.num_samples = whole + (remainder > 0)
            self.num_tokens = num_targets
        elif shuffle and whole > MIN_WINDOWS_TO_MOVE:
            self.num_samples = whole - 1
            self.num_tokens = self.num_samples * max_seq_length
            self.num_offsets = num_targets - self.num_tokens + 1
        else:
            self.num_samples = whole
            self.num_tokens = whole * max_seq_length

    def offset(self, epoch: int) -> int:
        if self.num_offsets == 1:
            return 0
        return int(generator("window-offset", self.seed, epoch).integers(self.num_offsets))

    def ids(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        distinct, where = np.unique(epochs, return_inverse=True)
        offsets = np.array([self.offset(int(epoch)) for epoch in distinct], dtype=np.int64)
        return offsets[where] + indices * self.max_seq_length

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return np.minimum(len(self.tokens) - ids, self.max_seq_length + 1)

    def read(self, ids: np.ndarray, width: int) -> np.ndarray:
        columns = np.arange(width)
        positions = np.minimum(ids[:, None] + columns, len(self.tokens) - 1)
        rows = self.tokens[positions].astype(np.int64)
        rows[columns >= self.lengths(ids)[:, None]] = 0
        return rows

    def describe(self, sample_id: int) -> dict[str, str]:
        place = self.documents.place(sample_id, self.tokens, self.tokenizer) if self.documents else f"token {sample_id}"
        return {
            "source": place,
            "text": excerpt(self.tokens[sample_id : sample_id + self.max_seq_length + 1], self.tokenizer),
        }


class TokenDocuments(Samples):
    """One document a sample, with its end of text where the tokenizer has one. The id is the document's index."""

    documents: DocumentTable

    def __init__(
        self,
        tokens: np.ndarray,
        documents: DocumentTable,
        max_seq_length: int,
        truncation: bool,
        *,
        end_of_text: int | None = None,
        tokenizer: Tokenizer | None = None,
        name: str = "the text",
    ) -> None:
        super().__init__(tokens, max_seq_length, documents, tokenizer)
        self.end_of_text = end_of_text
        whole_lengths = documents.lengths + (end_of_text is not None)
        if not truncation and (whole_lengths > max_seq_length + 1).any():
            document = int(np.argmax(whole_lengths > max_seq_length + 1))
            raise DataError(
                f"{documents.origin(document)}: with data.truncation=false a document must have at most "
                f"data.max_seq_length + 1 = {max_seq_length + 1} tokens, but it has {whole_lengths[document]}."
            )
        self._lengths = np.minimum(whole_lengths, max_seq_length + 1)
        # A document of one token has nothing to predict.
        self._ids = np.flatnonzero(self._lengths >= 2)
        if len(self._ids) == 0:
            raise DataError(f"{name} must have a document of at least 2 tokens, but has none.")
        self.num_samples = len(self._ids)
        self.num_tokens = int(self._lengths[self._ids].sum()) - self.num_samples

    def ids(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        return self._ids[indices]

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return self._lengths[ids]

    def read(self, ids: np.ndarray, width: int) -> np.ndarray:
        columns = np.arange(width)
        positions = np.minimum(self.documents.starts[ids][:, None] + columns, len(self.tokens) - 1)
        rows = self.tokens[positions].astype(np.int64)
        if self.end_of_text is not None:
            rows[columns == self.documents.lengths[ids][:, None]] = self.end_of_text
        rows[columns >= self._lengths[ids][:, None]] = 0
        return rows

    def describe(self, sample_id: int) -> dict[str, str]:
        source = self.documents.origin(sample_id)
        if self.documents.first_lines[sample_id] > 1:
            source = f"{source}:{self.documents.first_lines[sample_id]}"
        start = int(self.documents.starts[sample_id])
        length = min(int(self.documents.lengths[sample_id]), self.max_seq_length + 1)
        return {"source": source, "text": excerpt(self.tokens[start : start + length], self.tokenizer)}
