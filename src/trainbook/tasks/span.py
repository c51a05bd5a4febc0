"""Span corruption: pieces of a text are cut out, and written by the decoder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainbook.data import DataBundle, Tokenizer
from trainbook.data.batches import Batch, Ragged
from trainbook.data.frame import Frame
from trainbook.data.likeness import row_hashes
from trainbook.data.seeding import generator
from trainbook.errors import DataError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import max_target_length
from trainbook.tasks.batches import StepBatch
from trainbook.tasks.seq2seq import Seq2SeqModel, Seq2SeqTask, end_of, pair_micro_batches
from trainbook.tasks.task import Collate


def noise_counts(length: int, ratio: float, span_length: float) -> tuple[int, int]:
    """Tokens to cut out of a text, and in how many spans; at least one token is cut out and one stays."""
    noise = min(max(int(np.round(length * ratio)), 1), length - 1)
    spans = max(int(np.round(noise / span_length)), 1)
    return noise, min(spans, noise, length - noise)


def corrupted_lengths(length: int, ratio: float, span_length: float) -> tuple[int, int]:
    """Tokens of input and target after corruption, each with its end."""
    noise, spans = noise_counts(length, ratio, span_length)
    return length - noise + spans + 1, noise + spans + 1


def raw_length(max_positions: int, max_targets: int, ratio: float, span_length: float) -> int:
    """The longest text whose corrupted input and target fit."""
    length = 2
    while True:
        inputs, targets = corrupted_lengths(length + 1, ratio, span_length)
        if inputs > max_positions or targets > max_targets:
            return length
        length += 1


def noise_mask(length: int, ratio: float, span_length: float, chance: np.random.Generator) -> np.ndarray:
    """True where a token is cut out. Kept and cut spans take turns, a kept one first; all divisions are as likely."""
    noise, spans = noise_counts(length, ratio, span_length)
    pieces = np.empty(2 * spans, dtype=np.int64)
    pieces[0::2] = _divide(length - noise, spans, chance)
    pieces[1::2] = _divide(noise, spans, chance)
    return np.repeat(np.arange(2 * spans) % 2 == 1, pieces)


def _divide(total: int, parts: int, chance: np.random.Generator) -> np.ndarray:
    """Whole numbers >= 1 that add up to the total."""
    cuts = np.sort(chance.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate(([0], cuts, [total])))


def corrupt(tokens: np.ndarray, is_noise: np.ndarray, sentinels: np.ndarray, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Input: each cut span becomes its sentinel. Target: each sentinel, followed by what was cut out there."""
    starts = is_noise & ~np.concatenate(([False], is_noise[:-1]))
    number = np.cumsum(starts) - 1
    inputs = np.where(starts, sentinels[number], tokens)[~is_noise | starts]
    pieces = np.stack([np.where(starts, sentinels[number], -1), np.where(is_noise, tokens, -1)], axis=1).ravel()
    return np.append(inputs, end), np.append(pieces[pieces >= 0], end)


class SpanTask(Seq2SeqTask):
    records = "text"
    specials = ("pad", "sentinels")

    @classmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        # Nothing goes around the text before it is corrupted; its windows are longer than what is left of them.
        training, longest = config.training, max_target_length(config)
        length = raw_length(config.data.max_seq_length, longest, training.mask_ratio, training.span_length)
        spans = noise_counts(length, training.mask_ratio, training.span_length)[1]
        if spans > len(tokenizer.sentinels):
            raise DataError(
                f"a text of {length} tokens is cut at {spans} places, but the tokenizer has "
                f"{len(tokenizer.sentinels)} sentinels: raise training.span_length or lower training.mask_ratio."
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
        inputs, targets = [], []
        for tokens, sample_id, epoch in zip(batch.tokens.split(), batch.ids, batch.epochs, strict=True):
            chance = generator("spans", self.seed, int(epoch), int(sample_id))
            if len(tokens) < 2:  # nothing can be cut out of it
                inputs.append(np.append(tokens, self.end))
                targets.append(np.array([self.end]))
                continue
            is_noise = noise_mask(len(tokens), self.ratio, self.span_length, chance)
            left, cut = corrupt(tokens, is_noise, self.sentinels, self.end)
            inputs.append(left)
            targets.append(cut)
        pairs = Batch(
            batch.ids,
            batch.epochs,
            Ragged.of(inputs),
            batch.rows,
            batch.num_rows,
            None,
            batch.epoch,
            batch.step,
            batch.packed,
            targets=Ragged.of(targets),
        )
        made = pair_micro_batches(pairs, self.rows_each, self.pad)
        made.num_tokens = len(batch.tokens.values)  # of the text: what is cut out is not counted twice
        made.hashes = row_hashes(batch.tokens, batch.epochs)  # of the text, wherever it was cut
        return made
