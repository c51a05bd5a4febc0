"""What a batch plan needs of samples, whatever they are made of."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

import numpy as np

from trainbook.data.batches import Ragged
from trainbook.data.documents import DocumentTable
from trainbook.data.frame import Frame
from trainbook.data.ranges import Ranges
from trainbook.data.tokenizers import Tokenizer


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
    def describe(self, sample_id: int) -> dict[str, str]:
        """Where a sample comes from, and how it begins."""

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
