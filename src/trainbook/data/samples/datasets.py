"""Samples of a token stream: windows of equal length, or one document each. A sample is known by its id."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np

from trainbook.data.batches.filling import Ragged
from trainbook.data.prepare.filters import CHUNK, RULE, has_repeat, repeats_in
from trainbook.data.prepare.hashes import generator
from trainbook.data.samples.base import DocumentTable, LineBreaks, Samples, Stream, excerpt
from trainbook.data.samples.frame import Frame, counted, framed
from trainbook.data.sources.values import Ranges
from trainbook.data.tokenizers import Tokenizer
from trainbook.errors import DataError

# Text with a fixed period (records of equal width, lines with the same number of words), cut at equal distances.


SHORTEST_STRIDE = 16  # tokens: over shorter distances, ordinary text agrees with itself more at one than at another
MULTIPLES = 8  # of the stride: as many different starts, at most, are too few
NEIGHBOURS = 8  # distances behind each multiple that it is compared with
MORE_ALIKE = 0.05  # of the tokens: prose differs by a tenth of that from one distance to the next
LOOKED_AT = 1 << 20  # tokens, from four places of the stream
PLACES = 4
QUICKLY_COUNTED = 1 << 24  # tokens, whose line breaks are counted in some hundredths of a second


def is_in_step(tokens: np.ndarray, stride: int) -> bool:
    """Whether tokens that are a few strides apart are clearly more often equal than those a little further apart."""
    if stride < SHORTEST_STRIDE:
        return False
    stretches = _stretches(tokens)
    distances = [stride * multiple for multiple in range(1, MULTIPLES + 1)]
    return any(
        _alike(stretches, distance) - min(_alike(stretches, distance + more) for more in range(1, NEIGHBOURS + 1))
        > MORE_ALIKE
        for distance in distances
        if distance + NEIGHBOURS <= min(map(len, stretches)) // 2
    )


def _stretches(tokens: np.ndarray) -> list[np.ndarray]:
    if len(tokens) <= LOOKED_AT:
        return [np.asarray(tokens[:])]
    length = LOOKED_AT // PLACES
    begins = np.linspace(0, len(tokens) - length, PLACES).astype(np.int64)
    return [np.asarray(tokens[begin : begin + length]) for begin in begins.tolist()]


def _alike(stretches: list[np.ndarray], distance: int) -> float:
    return float(np.mean([np.mean(each[:-distance] == each[distance:]) for each in stretches]))


__all__ = ["Samples", "TokenDocuments", "TokenWindows", "TruncationSide"]

TruncationSide = Literal["right", "left"]

# With more windows than this, training gives up one of them so that each epoch can cut the stream elsewhere.
MIN_WINDOWS_TO_MOVE = 16


class TokenWindows(Samples):
    """Windows of the stream, each as long as fits between the frame's prefix and suffix, or as the frame says.

    For a causal model they overlap by one, so every token but the first is a target once. Training drops a remainder
    that is shorter; with `shuffle` and enough windows, each epoch cuts the stream at another offset. Text with a fixed
    period that fits the windows would have all windows of an epoch start at the same place of a record: there the
    offset grows by one window's length over the stream, so that every epoch has all of these starts. Evaluation
    always cuts at 0 and keeps the remainder. The id of a sample is its start in the stream.

    With `repetition_filter`, no batch may have a window that touches a repeat.
    """

    kind = "windows"
    equally_long = True

    def __init__(
        self,
        tokens: np.ndarray,
        frame: Frame,
        *,
        shuffle: bool = False,
        evaluation: bool = False,
        seed: int = 0,
        documents: DocumentTable | None = None,
        tokenizer: Tokenizer | None = None,
        name: str = "the text",
        repetition_filter: bool = False,
    ) -> None:
        super().__init__(tokens, frame, documents, tokenizer)
        self.window_length = frame.window_length or frame.room
        self.stride = self.window_length - frame.shift
        if self.stride < 1:
            raise _no_room(frame)
        available = len(tokens) - frame.shift
        if available < 1:
            at_least = "2 tokens (one to read, one to predict)" if frame.shift else "1 token"
            raise DataError(f"{name} must have at least {at_least}, but has {len(tokens)}.")
        whole, remainder = divmod(available, self.stride)
        self.seed = seed
        self.num_offsets = 1
        self.offset_growth = 0  # tokens, from the first window to the last: left out one by one in between
        self.num_samples = whole
        if evaluation or whole == 0:
            self.num_samples += remainder > 0
        elif shuffle and whole > MIN_WINDOWS_TO_MOVE:
            self.num_samples -= 1
            if is_in_step(tokens, self.stride):
                self.num_samples -= 1
                self.offset_growth = self.stride - 1
            self.num_offsets = available - self.num_samples * self.stride - self.offset_growth + 1
        around = len(frame.prefix) + len(frame.suffix)
        self.num_tokens = min(available, self.num_samples * self.stride) + self.num_samples * around
        if repetition_filter:
            self._filter(name)

    def _filter(self, name: str) -> None:
        repeats = repeats_in(self.tokens)
        self.filtered = Ranges.of(repeats.begins, repeats.ends)
        first_epoch = self.ids(np.arange(self.num_samples), np.zeros(self.num_samples, dtype=np.int64))
        self.num_filtered = int(self.filtered.touch(*self.extent(first_epoch)).sum())
        if self.num_filtered == self.num_samples:
            raise DataError(
                f"data.repetition_filter: every window of {name} contains a repetition ({RULE}). {_WITHOUT}"
            )

    def offset(self, epoch: int) -> int:
        if self.num_offsets == 1:
            return 0
        return int(generator("window-offset", self.seed, epoch).integers(self.num_offsets))

    def ids(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        distinct, where = np.unique(epochs, return_inverse=True)
        offsets = np.array([self.offset(int(epoch)) for epoch in distinct], dtype=np.int64)
        grown = indices * (self.offset_growth + 1) // self.num_samples
        return offsets[where] + grown + indices * self.stride

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return self._body_lengths(ids) + len(self.frame.prefix) + len(self.frame.suffix)

    def _body_lengths(self, ids: np.ndarray) -> np.ndarray:
        return np.minimum(len(self.tokens) - ids, self.window_length)

    def extent(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that are read: the last one of a causal window is only predicted, and the next window's first."""
        return ids, np.minimum(ids + self.stride, len(self.tokens))

    def read(self, ids: np.ndarray) -> Ragged:
        return framed(Ragged.gather(self.tokens, ids, self._body_lengths(ids)), self.frame.prefix, self.frame.suffix)

    @cached_property
    def _line_breaks(self) -> LineBreaks | None:
        tokenizer = self.tokenizer
        return LineBreaks(self.tokens, tokenizer) if tokenizer is not None and tokenizer.is_lossless else None

    def describe(self, sample_id: int, *, is_quick: bool = False) -> dict[str, str]:
        most = QUICKLY_COUNTED if is_quick else None
        place = self.documents.place(sample_id, self._line_breaks, most) if self.documents else f"token {sample_id}"
        return {"source": place, "text": self.excerpt(sample_id)}

    def excerpt(self, sample_id: int) -> str:
        return excerpt(self.tokens[sample_id : sample_id + self.window_length], self.tokenizer)


class TokenDocuments(Samples):
    """One document a sample, with what the frame puts around it. The id is the document's index.

    A document that is too long is cut at one side, between prefix and suffix. Cut at its right side, a causal one has
    not ended, so it gets no suffix. Documents with nothing to predict are left out, and with `repetition_filter` those
    that have a repeat in what would be read or produced of them.
    """

    kind = "documents"
    documents: DocumentTable
    equally_long = False

    def __init__(
        self,
        tokens: np.ndarray,
        documents: DocumentTable,
        frame: Frame,
        *,
        truncation: bool = True,
        truncation_side: TruncationSide = "right",
        targets: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
        labels: np.ndarray | None = None,
        marks: np.ndarray | None = None,
        tokenizer: Tokenizer | None = None,
        name: str = "the text",
        repetition_filter: bool = False,
    ) -> None:
        super().__init__(tokens, frame, documents, tokenizer)
        self._labels, self._marks = labels, marks
        self._lay_out(truncation, truncation_side)
        self._targets = Stream(*targets) if targets is not None else None
        if self._targets is not None:
            self._lay_out_targets(self._targets, truncation)
        usable = self._usable()
        if not usable.any():
            raise DataError(f"{name} must have {_what_is_usable(frame, targets, marks)}, but has none.")
        left_out = usable & self._has_repeat() if repetition_filter else np.zeros(len(documents), dtype=bool)
        self._ids = np.flatnonzero(usable & ~left_out)
        if len(self._ids) == 0:
            raise DataError(
                f"data.repetition_filter: every document of {name} contains a repetition ({RULE}). {_WITHOUT}"
            )
        self.num_samples = len(self._ids)
        self.num_filtered, self.filtered = int(left_out.sum()), Ranges.of(*self.extent(np.flatnonzero(left_out)))
        self.num_left_out = len(documents) - self.num_samples - self.num_filtered
        self.share_read = float(self._body_lengths[~left_out].sum() / max(1, documents.lengths.sum()))
        self.num_cut = int((self._body_lengths < documents.lengths)[self._ids].sum())
        if self._targets is not None:
            has_ended = self._target_lengths >= self._targets.lengths
            has_ended &= self._target_suffix_lengths == len(frame.target_suffix)
            self.num_targets_cut = int((~has_ended)[self._ids].sum())
        self.num_tokens = int(self.positions(self._ids).sum())
        if (targets_of_each := self.target_lengths(self._ids)) is not None:
            self.num_tokens += int(targets_of_each.sum())

    def _lay_out(self, truncation: bool, side: TruncationSide) -> None:
        """Where each document's part begins in the stream, how long it is, and how much of the suffix follows it."""
        frame, whole = self.frame, self.documents.lengths
        around = len(frame.prefix) + len(frame.suffix)
        if not truncation and (whole > frame.room).any():
            self._refuse("data.max_seq_length", whole + around, frame.max_length, frame.shift)
        open_end = side == "right" and not frame.keep_suffix
        room = frame.max_length - len(frame.prefix) if open_end else frame.room
        if room < 1:
            raise _no_room(frame)
        self._body_lengths = np.minimum(whole, room)
        self._body_starts = self.documents.starts + (whole - self._body_lengths if side == "left" else 0)
        left = frame.max_length - len(frame.prefix) - self._body_lengths
        self._suffix_lengths = np.minimum(left, len(frame.suffix))
        self._lengths = len(frame.prefix) + self._body_lengths + self._suffix_lengths

    def _lay_out_targets(self, targets: Stream, truncation: bool) -> None:
        """How much of each target there is room for. One that is cut has not ended, so it gets no suffix: a model must
        not learn to stop there."""
        frame = self.frame
        around = len(frame.target_prefix) + len(frame.target_suffix)
        room = frame.max_target_positions - around
        if room < 1:
            raise DataError(
                f"data.max_target_length: must be at least {around + 1}, but got {frame.max_target_positions}."
            )
        if not truncation and (targets.lengths > room).any():
            self._refuse("data.max_target_length", targets.lengths + around, frame.max_target_positions, 0, "target")
        open_room = frame.max_target_positions - len(frame.target_prefix)
        self._target_lengths = np.minimum(targets.lengths, open_room)
        self._target_suffix_lengths = np.minimum(open_room - self._target_lengths, len(frame.target_suffix))

    def _refuse(self, knob: str, lengths: np.ndarray, most: int, shift: int, what: str = "document") -> None:
        document = int(np.argmax(lengths > most))
        law = f"{knob} + {shift} = {most}" if shift else f"{knob} = {most}"
        raise DataError(
            f"{self.documents.origin(document)}: with data.truncation=false, a {what} must have at most {law} tokens, "
            f"but this one has {lengths[document]}."
        )

    def _usable(self) -> np.ndarray:
        usable = self._lengths > self.frame.shift
        if self._labels is None:
            usable &= self._body_lengths > 0
        if self._targets is not None:
            usable &= len(self.frame.target_prefix) + self._target_lengths + self._target_suffix_lengths > 0
        if self._marks is not None:
            # The first token of a causal sample is read and never predicted.
            unpredicted = max(self.frame.shift - len(self.frame.prefix), 0)
            marked = _places_of_marks(self._marks)
            first, behind = (
                np.searchsorted(marked, self._body_starts + edge) for edge in (unpredicted, self._body_lengths)
            )
            usable &= behind > first
        return usable

    def _has_repeat(self) -> np.ndarray:
        has = has_repeat(repeats_in(self.tokens), self._body_starts, self._body_lengths)
        if self._targets is not None:
            has |= has_repeat(repeats_in(self._targets.tokens), self._targets.starts, self._target_lengths)
        return has

    def ids(self, indices: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        return self._ids[indices]

    def extent(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return ids, ids + 1

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return self._lengths[ids]

    def read(self, ids: np.ndarray) -> Ragged:
        body = Ragged.gather(self.tokens, self._body_starts[ids], self._body_lengths[ids])
        return framed(body, self.frame.prefix, self.frame.suffix, self._suffix_lengths[ids])

    def target_lengths(self, ids: np.ndarray) -> np.ndarray | None:
        if self._targets is None:
            return None
        return len(self.frame.target_prefix) + self._target_lengths[ids] + self._target_suffix_lengths[ids]

    def read_targets(self, ids: np.ndarray) -> Ragged | None:
        if self._targets is None:
            return None
        body = Ragged.gather(self._targets.tokens, self._targets.starts[ids], self._target_lengths[ids])
        return framed(body, self.frame.target_prefix, self.frame.target_suffix, self._target_suffix_lengths[ids])

    def labels(self, ids: np.ndarray) -> np.ndarray | None:
        return self._labels[ids] if self._labels is not None else None

    def read_marks(self, ids: np.ndarray) -> Ragged | None:
        """What ends a learned text is learned with it, or a model would never stop; a tag never stands there."""
        if self._marks is None:
            return None
        body = Ragged.gather(self._marks, self._body_starts[ids], self._body_lengths[ids])
        marks = framed(body, [-1] * len(self.frame.prefix), [-1] * len(self.frame.suffix), self._suffix_lengths[ids])
        if self.frame.shift:
            behind = np.repeat(marks.starts + len(self.frame.prefix) + body.lengths, self._suffix_lengths[ids])
            last = np.repeat(self._marks[self._body_starts[ids] + body.lengths - 1], self._suffix_lengths[ids])
            marks.values[behind + counted(self._suffix_lengths[ids])] = last
        return marks

    def describe(self, sample_id: int, *, is_quick: bool = False) -> dict[str, str]:
        start, length = int(self._body_starts[sample_id]), int(self._body_lengths[sample_id])
        text = excerpt(self.tokens[start : start + length], self.tokenizer)
        description = {"source": self.documents.source(sample_id), "text": text}
        if self._targets is not None:
            start, length = int(self._targets.starts[sample_id]), int(self._target_lengths[sample_id])
            description["target"] = excerpt(self._targets.tokens[start : start + length], self.tokenizer)
        return description


_WITHOUT = "Nothing is left to train on: inspect the data with trainbook data, or set data.repetition_filter=false."


def _what_is_usable(frame: Frame, targets: Any, marks: Any) -> str:
    if marks is not None:
        return f"a document with a target in its first {frame.max_positions} positions"
    if targets is not None:
        return "a pair of texts of at least 1 token each"
    return f"a document of at least {1 + frame.shift} token{'s' if frame.shift else ''}"


def _places_of_marks(marks: np.ndarray) -> np.ndarray:
    """Some at a time: they may lie in many files."""
    found = [begin + np.flatnonzero(marks[begin : begin + CHUNK] >= 0) for begin in range(0, len(marks), CHUNK)]
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def _no_room(frame: Frame) -> DataError:
    least = len(frame.prefix) + len(frame.suffix) + 1
    return DataError(
        f"data.max_seq_length: must be at least {least}, so that a token fits beside the {least - 1} special tokens "
        f"of each sample, but got {frame.max_positions}."
    )
