"""Masked language modelling: some tokens are hidden, and predicted from both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from trainbook.data import DataBundle, Tokenizer
from trainbook.data.batches.filling import Batch, Ragged, places_in
from trainbook.data.samples.frame import Frame
from trainbook.data.sources.records import row_hashes
from trainbook.errors import DataError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import max_target_length
from trainbook.models import Transformer, build_bert
from trainbook.models.core import PLAIN, make_norm
from trainbook.tasks.layout import StepBatch, parts
from trainbook.tasks.losses import draw
from trainbook.tasks.seq2seq import Seq2SeqModel, Seq2SeqTask, end_of, pair_micro_batches
from trainbook.tasks.task import Collate, Facts
from trainbook.tasks.tokens import BuiltInTokenTask, TokenTask

# Of the chosen tokens: this share becomes the mask, this one a random token; the rest stay as they are.
MASKED, RANDOM = 0.8, 0.1
CHOOSE, REPLACE, WHICH = 1, 2, 3  # purposes of random numbers


def encoder_frame(config: Config, tokenizer: Tokenizer) -> Frame:
    """A text between the token that stands for all of it and the one that ends it."""
    begin, separator = tokenizer.special("begin"), tokenizer.special("separator")
    assert begin is not None and separator is not None, "the task asked for them"
    return Frame(config.data.max_seq_length, prefix=(begin,), suffix=(separator,))


class MaskedTask(TokenTask):
    specials = ("pad", "begin", "separator", "mask")

    @classmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        return encoder_frame(config, tokenizer)

    @classmethod
    def collate(cls, config: Config, data: DataBundle, rows_each: int) -> Collate:
        return MaskedCollate.of(config, data.tokenizer, rows_each)


class MaskedLanguageModel(BuiltInTokenTask, MaskedTask):
    """BERT's: a body that reads both ways, a transform, and a head that shares the embedding's rows."""

    def __init__(self, config: Config, facts: Facts) -> None:
        super().__init__(config, facts)
        self.body: Transformer = build_bert(config, facts.vocab_size)
        shape = self.body.shape
        self.activation = PLAIN.get(shape.activation, PLAIN["gelu"])  # the body's own, if it has no gate
        self.transform = nn.Linear(shape.hidden_size, shape.hidden_size, bias=shape.bias)
        self.transform_norm = make_norm(shape, shape.hidden_size)
        self.make_head(config, bias=True)

    def hidden(
        self,
        input_ids: Tensor,
        chosen: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Only at the chosen positions: the head over the vocabulary costs more than the rest of a small model."""
        return self.body(input_ids, document_ids=document_ids, positions=positions).flatten(0, 1)[chosen]

    def read_out(self, hidden: Tensor) -> Tensor:
        return self.capped(self.head(self.transform_norm(self.activation(self.transform(hidden)))))


@dataclass(frozen=True)
class MaskedCollate:
    """Which tokens are hidden is drawn anew in each epoch, and always the same in evaluation."""

    rows_each: int
    seed: int
    ratio: float
    mask: int
    pad: int
    is_special: np.ndarray  # over the vocabulary: never hidden, never put in at random
    ordinary: np.ndarray  # ids of all other tokens
    words: tuple[np.ndarray, np.ndarray] | None  # (glued, ends_in_letter) for masking whole words

    @classmethod
    def of(cls, config: Config, tokenizer: Tokenizer, rows_each: int) -> MaskedCollate:
        roles = ("pad", "begin", "separator", "mask", "unknown")
        special = [token for role in roles if (token := tokenizer.special(role)) is not None]
        special += [*tokenizer.sentinels, *([] if tokenizer.end_of_text is None else [tokenizer.end_of_text])]
        special += tokenizer.special_names
        is_special = np.zeros(tokenizer.vocab_size, dtype=bool)
        is_special[special] = True
        mask = tokenizer.special("mask")
        assert mask is not None
        return cls(
            rows_each,
            config.training.seed,
            config.training.mask_ratio,
            mask,
            tokenizer.padding,
            is_special,
            np.flatnonzero(~is_special),
            tokenizer.joined_words() if config.training.whole_word_masking else None,
        )

    def __call__(self, batch: Batch) -> StepBatch:
        micro_batches = []
        num_targets = num_tokens = 0
        for part in parts(batch, self.rows_each):
            tokens = part.take(batch.tokens)
            inputs, chosen = self.hide(tokens, part.ids, part.epochs)
            layout = part.layout(tokens.lengths, batch.width)
            micro_batches.append(
                {
                    "input_ids": layout.place(inputs, self.pad),
                    "chosen": torch.from_numpy(layout.cells[chosen]),
                    "targets": torch.from_numpy(tokens.values[chosen]),
                    **layout.masks(causal=False),
                }
            )
            num_targets += int(chosen.sum())
            num_tokens += len(tokens.values)
        return StepBatch.of(batch, micro_batches, num_targets, num_tokens)

    def hide(self, tokens: Ragged, ids: np.ndarray, epochs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs with tokens hidden, and which ones were chosen."""
        sample, place = tokens.which, tokens.places
        can_be_hidden = ~self.is_special[tokens.values]
        unit = self._words(tokens, sample) if self.words is not None else np.arange(len(sample))
        # One number decides for a whole unit: that of its first token.
        score = draw(CHOOSE, self.seed, epochs[sample], ids[sample], place)[unit]
        chosen = self._lowest(score, sample, unit, can_be_hidden)

        sample, place = sample[chosen], place[chosen]
        how, which = (draw(purpose, self.seed, epochs[sample], ids[sample], place) for purpose in (REPLACE, WHICH))
        random_tokens = self.ordinary[(which * len(self.ordinary)).astype(np.int64)]
        inputs = tokens.values.copy()
        inputs[chosen] = np.where(
            how < MASKED, self.mask, np.where(how < MASKED + RANDOM, random_tokens, inputs[chosen])
        )
        return inputs, chosen

    def _words(self, tokens: Ragged, sample: np.ndarray) -> np.ndarray:
        """For each token, the index of the first token of its word."""
        assert self.words is not None
        glued, ends_in_letter = self.words
        goes_on = np.zeros(len(sample), dtype=bool)
        before, now = tokens.values[:-1], tokens.values[1:]
        goes_on[1:] = glued[now] & ends_in_letter[before] & (sample[1:] == sample[:-1])
        return np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(sample))))

    def _lowest(self, score: np.ndarray, sample: np.ndarray, unit: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """The asked share of each sample's tokens, whole units in the order of their scores; at least one token."""
        # One number to sort by, 40 bits of it the score: several keys would take four times as long.
        order = np.argsort((sample << 41) + (~allowed << 40) + (score * 2.0**40).astype(np.int64), kind="stable")
        first_of_sample = np.searchsorted(sample, sample)  # samples lie one behind the other, also after sorting
        rank = np.empty(len(sample), dtype=np.int64)
        rank[order] = np.arange(len(sample)) - first_of_sample[order]
        available = np.bincount(sample, weights=allowed, minlength=int(sample.max(initial=-1)) + 1)
        wanted = np.maximum(np.floor(self.ratio * available + 0.5), np.minimum(available, 1))[sample]
        # A unit is taken if at least half of it lies within what is wanted; the very first one always.
        size = np.bincount(unit, minlength=len(sample))[unit]
        first_rank = np.full(len(sample), np.iinfo(np.int64).max)
        np.minimum.at(first_rank, unit, rank)
        first_rank = first_rank[unit]
        return allowed & ((first_rank + size / 2 <= wanted) | ((first_rank == 0) & (wanted > 0)))


# Span corruption: pieces of a text are cut out, and written by the decoder.


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
