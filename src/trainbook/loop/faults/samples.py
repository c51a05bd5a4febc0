"""Corrupted samples: the same ids and lengths, other contents. Places in the text are corrupted, not ids: a window of
another epoch that overlaps a corrupted one reads the corrupted tokens too."""

from __future__ import annotations

from copy import copy
from typing import Any, cast

import numpy as np

from trainbook.data.datasets import TokenDocuments, TokenWindows
from trainbook.data.frame import counted
from trainbook.data.samples import Samples

# Values that occur are looked for in so much of a stream: enough to meet every common one, soon done for any stream.
LOOKED_AT = 1 << 24


def repeat_tokens(samples: Samples, ids: np.ndarray, draw: np.random.Generator) -> Samples:
    """Of each sample one of its rarest tokens, all over; the text to produce, if there is one, likewise."""
    spoilt = _copy(samples)
    spoilt.tokens = _repeated(samples.tokens, *_text_places(samples, ids), draw)
    if isinstance(samples, TokenDocuments) and samples._targets is not None:
        targets = samples._targets
        tokens = _repeated(targets.tokens, targets.starts[ids], samples._target_lengths[ids], draw)
        cast(TokenDocuments, spoilt)._targets = targets._replace(tokens=tokens)
    return spoilt


def draw_labels(samples: Samples, ids: np.ndarray, draw: np.random.Generator) -> Samples:
    """What each sample teaches, drawn at random from what occurs in the data: its label, the tags of its words, the
    text to produce; its own tokens, where the text itself is what is learned."""
    spoilt = _copy(samples)
    if isinstance(samples, TokenDocuments) and isinstance(spoilt, TokenDocuments):
        if samples._labels is not None:
            occurring = np.unique(samples._labels[:LOOKED_AT], axis=0)
            spoilt._labels = _patched(samples._labels, ids, occurring[draw.integers(len(occurring), size=len(ids))])
            return spoilt
        if samples._targets is not None:
            targets = samples._targets
            tokens = _drawn(targets.tokens, _places(targets.starts[ids], samples._target_lengths[ids]), draw)
            spoilt._targets = targets._replace(tokens=tokens)
            return spoilt
        if samples._marks is not None and samples.frame.shift == 0:  # tags; in a causal text, marks are what is learned
            places = _places(*_text_places(samples, ids))
            spoilt._marks = _drawn(samples._marks, places[samples._marks[places] >= 0], draw)
            return spoilt
    spoilt.tokens = _drawn(samples.tokens, _places(*_text_places(samples, ids)), draw)
    return spoilt


class Patched:
    """An array with other values at some places. It is read by slices and by arrays of places, and never copied whole:
    it may be a file that is larger than memory."""

    def __init__(self, base: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
        self.base, self.dtype = base, base.dtype
        self.places, first = np.unique(places, return_index=True)
        self.values = values[first].astype(base.dtype, copy=False)

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, asked: slice | np.ndarray) -> np.ndarray:
        found = np.array(self.base[asked])
        places = np.arange(*asked.indices(len(self))) if isinstance(asked, slice) else asked
        at = np.searchsorted(self.places, places)
        is_changed = np.append(self.places, -1)[at] == places
        found[is_changed] = self.values[at[is_changed]]
        return found

    # Workers get a mapped file by its path, as they do from samples.
    __getstate__: Any = Samples.__getstate__
    __setstate__: Any = Samples.__setstate__


class SpoiltWindows(TokenWindows):
    clean: TokenWindows

    @classmethod
    def of(cls, clean: TokenWindows) -> SpoiltWindows:
        spoilt = cls.__new__(cls)
        vars(spoilt).update(vars(clean), clean=clean)
        return spoilt

    def describe(self, sample_id: int) -> dict[str, str]:
        """The source is a line of the file, so it is counted in the text as it is there."""
        return {**super().describe(sample_id), "source": self.clean.describe(sample_id)["source"]}


def _copy(samples: Samples) -> Samples:
    return SpoiltWindows.of(samples) if isinstance(samples, TokenWindows) else copy(samples)


def _text_places(samples: Samples, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where in the stream the text of each sample begins, and its length without what the frame puts around it."""
    if isinstance(samples, TokenDocuments):
        return samples._body_starts[ids], samples._body_lengths[ids]
    # Causal windows share their first and last tokens with their neighbours. Those stay, so that all that is spoilt is
    # gone when the sample is kept out.
    begins, ends = samples.extent(ids)
    return begins + samples.frame.shift, ends - begins - samples.frame.shift


def _places(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return np.repeat(starts, lengths) + counted(lengths)


def _repeated(stream: np.ndarray, starts: np.ndarray, lengths: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    chosen = np.array([_rarest(stream[at : at + length], draw) for at, length in zip(starts, lengths, strict=True)])
    return _patched(stream, _places(starts, lengths), np.repeat(chosen, lengths))


def _rarest(tokens: np.ndarray, draw: np.random.Generator) -> int:
    """A token that is common in the sample may be no surprise over and over: a line of spaces is no poison."""
    found, counts = np.unique(tokens, return_counts=True)
    return int(draw.choice(found[counts == counts.min()]))


def _drawn(stream: np.ndarray, places: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    occurring = np.unique(stream[:LOOKED_AT])
    occurring = occurring[occurring >= 0]  # a mark below zero says that there is none
    return _patched(stream, places, occurring[draw.integers(len(occurring), size=len(places))])


def _patched(base: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    return cast(np.ndarray, Patched(base, places, values))  # samples read their arrays in no other way than it offers
