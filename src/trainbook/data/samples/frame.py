"""What a task puts around a document's tokens, and how much room the model has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trainbook.data.batches.filling import Ragged
from trainbook.data.sources.records import LabelKind, RecordKind
from trainbook.data.tokenizers import Tokenizer


@dataclass(frozen=True)
class Frame:
    """Tokens before and after each sample, and the most positions that it may take.

    A causal model reads all tokens but the last and predicts all but the first: `shift` is 1, and a sample has one
    token more than it takes positions. Everything else has a position for each token.
    """

    max_positions: int  # data.max_seq_length
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    keep_suffix: bool = True  # a document that is cut still ends with the suffix; a causal one does not end there
    shift: int = 0
    window_length: int | None = None  # tokens of a window without prefix and suffix; None: as many as fit
    target_prefix: tuple[int, ...] = ()
    target_suffix: tuple[int, ...] = ()
    max_target_positions: int = 0

    @property
    def max_length(self) -> int:
        """Tokens of a sample, prefix and suffix included."""
        return self.max_positions + self.shift

    @property
    def room(self) -> int:
        """Tokens of a sample between prefix and suffix."""
        return self.max_length - len(self.prefix) - len(self.suffix)


def framed(
    body: Ragged, prefix: Sequence[int], suffix: Sequence[int], suffix_lengths: np.ndarray | None = None
) -> Ragged:
    """Each part between the prefix and as much of the suffix as it is to have, all of it unless said."""
    if len(prefix) == 0 and len(suffix) == 0:
        return body
    if suffix_lengths is None:
        suffix_lengths = np.full(len(body), len(suffix), dtype=np.int64)
    lengths = len(prefix) + body.lengths + suffix_lengths
    starts = np.cumsum(lengths) - lengths
    values = np.empty(lengths.sum(), dtype=np.int64)
    values[starts[:, None] + np.arange(len(prefix))] = prefix
    body_starts = starts + len(prefix)
    values[np.repeat(body_starts, body.lengths) + counted(body.lengths)] = body.values
    behind = counted(suffix_lengths)
    values[np.repeat(body_starts + body.lengths, suffix_lengths) + behind] = np.array(suffix, dtype=np.int64)[behind]
    return Ragged(values, lengths)


def counted(lengths: np.ndarray) -> np.ndarray:
    """0, 1, 2 ... for each of them, one behind the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


# What a task asks of the data.


@dataclass(frozen=True)
class Request:
    records: RecordKind = "text"
    labels: LabelKind | None = None  # of labelled records
    specials: tuple[str, ...] = ()  # roles of special tokens that the tokenizer must have
    begins: bool = False  # in a stream, a document begins with what the tokenizer puts before a text, such as <s>
    frame: Callable[[Tokenizer], Frame] = field(kw_only=True)  # what is put around each sample, once tokens are known


# What each task reads, so that data can be looked at without building the task.
READ_BY_TASK: Mapping[str, tuple[RecordKind, LabelKind | None]] = {
    "causal": ("text", None),
    "chat": ("chat", None),
    "masked": ("text", None),
    "span": ("text", None),
    "seq2seq": ("pairs", None),
    "classify": ("labelled", "class"),
    "classify_many": ("labelled", "classes"),
    "regress": ("labelled", "number"),
    "tag": ("tagged", "class"),
}


def reading_request(task: str) -> Request | None:
    """A request that is enough to open sources for a task; None for a task of the user's own."""
    if task not in READ_BY_TASK:
        return None
    records, labels = READ_BY_TASK[task]
    return Request(records, labels, frame=lambda tokenizer: Frame(1))
