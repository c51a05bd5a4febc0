"""Span corruption: pieces of a text are cut out, and written by the decoder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainbook.data import DataBundle, Tokenizer
from trainbook.data.batches import Batch, Ragged, places_in
from trainbook.data.frame import Frame
from trainbook.data.row_hashes import row_hashes
from trainbook.errors import DataError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import max_target_length
from trainbook.tasks.batches import StepBatch
from trainbook.tasks.chance import draw
from trainbook.tasks.seq2seq import Seq2SeqModel, Seq2SeqTask, end_of, pair_micro_batches
from trainbook.tasks.task import Collate

SPANS = 4  # what random numbers are for


def noise_counts(lengths: np.ndarray, ratio: float, span_length: float) -> tuple[np.ndarray, np.ndarray]:
    """Tokens to cut out of texts, and in how many spans; at least one token is cut out and one stays."""
    noise = np.clip(np.round(lengths * ratio).astype(np.int64), 1, lengths - 1)
    spans = np.maximum(np.round(noise / span_length).astype(np.int64), 1)
    return noise, np.minimum(spans, np.minimum(noise, lengths - noise))


def corrupted_lengths(length: int, ratio: float, span_length: float) -> tuple[int, int]:
    """Tokens of input and target after corruption, each with its end."""
    noise, spans = map(int, noise_counts(np.array(length), ratio, span_length))
    return length - noise + spans + 1, noise + spans + 1


def raw_length(max_positions: int, max_targets: int, ratio: float, span_length: float) -> int:
    """The longest text whose corrupted input and target fit."""
    length = 2
    while True:
        inputs, targets = corrupted_lengths(length + 1, ratio, span_length)
        if inputs > max_positions or targets > max_targets:
            return length
        length += 1


def noise_mask(lengths: np.ndarray, ratio: float, span_length: float, scores: np.ndarray) -> np.ndarray:
    """True where a token is cut out, of texts one behind the other, by a number of chance in [0, 1) for each token.
    Kept and cut spans take turns, a kept one first; all divisions are as likely."""
    noise, spans = noise_counts(lengths, ratio, span_length)
    stays = places_in(lengths) < np.repeat(lengths - noise, lengths)  # which numbers divide what is kept
    kept, cut = _divide(lengths - noise, spans, scores[stays]), _divide(noise, spans, scores[~stays])
    return np.repeat(np.arange(2 * len(cut)) % 2 == 1, np.stack([kept, cut], axis=1).ravel())


def _divide(totals: np.ndarray, parts: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Each total as so many whole numbers >= 1 that add up to it: a new one begins at the units of lowest score."""
    first = np.cumsum(totals) - totals
    bits = (scores * 2.0**40).astype(np.int64) + 1
    bits[first] = 0  # the first unit always begins one
    order = np.argsort((np.repeat(np.arange(len(totals)), totals) << 41) + bits)
    begins = np.sort(Ragged.gather(order, first, parts).values)
    return np.diff(begins, append=totals.sum())


def corrupt(tokens: Ragged, is_noise: np.ndarray, sentinels: np.ndarray, end: int) -> tuple[Ragged, Ragged]:
    """Inputs: each cut span becomes its sentinel. Targets: each sentinel, followed by what was cut out there.
    No text begins with a cut span."""
    starts = is_noise & ~np.concatenate(([False], is_noise[:-1]))
    text = tokens.which
    spans_before = np.concatenate(([0], np.cumsum(starts)))
    number = spans_before[1:] - 1 - spans_before[tokens.starts][text]
    marked = np.where(starts, sentinels[number], tokens.values)
    stays = ~is_noise | starts
    pieces = np.stack([np.where(starts, marked, -1), np.where(is_noise, tokens.values, -1)], axis=1).ravel()
    num_left = np.bincount(text[stays], minlength=len(tokens))
    num_cut = np.bincount(text[is_noise], minlength=len(tokens)) + np.bincount(text[starts], minlength=len(tokens))
    return _ended(marked[stays], num_left, end), _ended(pieces[pieces >= 0], num_cut, end)


def _ended(values: np.ndarray, lengths: np.ndarray, end: int) -> Ragged:
    return Ragged(np.insert(values, np.cumsum(lengths), end), lengths + 1)


class SpanTask(Seq2SeqTask):
    records = "text"
    specials = ("pad", "sentinels")

    @classmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        # Nothing goes around the text before it is corrupted; its windows are longer than what is left of them.
        training, longest = config.training, max_target_length(config)
        length = raw_length(config.data.max_seq_length, longest, training.mask_ratio, training.span_length)
        spans = int(noise_counts(np.array(length), training.mask_ratio, training.span_length)[1])
        if spans > len(tokenizer.sentinels):
            raise DataError(
                f"a text of {length} tokens would have {spans} masked spans, but the tokenizer has only "
                f"{len(tokenizer.sentinels)} sentinel tokens: raise training.span_length or lower training.mask_ratio."
            )
        return Frame(length, window_length=length, max_target_positions=longest)

    @classmethod
    def collate(cls, config: Config, data: DataBundle, rows_each: int) -> Collate:
        tokenizer, training = data.tokenizer, config.training
        pad = tokenizer.special("pad")
        assert pad is not None
        return SpanCollate(
            rows_each,
            training.seed,
            training.mask_ratio,
            training.span_length,
            np.array(tokenizer.sentinels, dtype=np.int64),
            end_of(tokenizer),
            pad,
        )


class SpanModel(SpanTask, Seq2SeqModel):
    pass


@dataclass(frozen=True)
class SpanCollate:
    rows_each: int
    seed: int
    ratio: float
    span_length: float
    sentinels: np.ndarray
    end: int
    pad: int

    def __call__(self, batch: Batch) -> StepBatch:
        tokens = batch.tokens
        text = tokens.which
        scores = draw(SPANS, self.seed, batch.epochs[text], batch.ids[text], tokens.places)
        can_be_cut = tokens.lengths > 1
        is_noise = np.zeros(len(tokens.values), dtype=bool)
        of_these = can_be_cut[text]
        is_noise[of_these] = noise_mask(tokens.lengths[can_be_cut], self.ratio, self.span_length, scores[of_these])
        inputs, targets = corrupt(tokens, is_noise, self.sentinels, self.end)
        pairs = Batch(
            batch.ids,
            batch.epochs,
            inputs,
            batch.rows,
            batch.num_rows,
            None,
            batch.epoch,
            batch.step,
            batch.packed,
            targets=targets,
        )
        made = pair_micro_batches(pairs, self.rows_each, self.pad)
        made.num_tokens = len(batch.tokens.values)  # of the text: what is cut out is not counted twice
        made.hashes = row_hashes(batch.tokens, batch.epochs)  # of the text, wherever it was cut
        return made
