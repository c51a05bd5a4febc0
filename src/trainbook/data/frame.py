"""What a task puts around a document's tokens, and how much room the model has for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainbook.data.batches import Ragged


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
