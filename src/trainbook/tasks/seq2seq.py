"""Sequence to sequence: an encoder reads a text, a decoder writes another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from trainbook.data import DataBundle, Tokenizer
from trainbook.data.batches.filling import Batch
from trainbook.data.samples.frame import Frame
from trainbook.errors import DataError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import max_target_length
from trainbook.models import EncoderDecoder, EncoderMemory, KeyValueCache, build_t5
from trainbook.tasks.layout import StepBatch, parts
from trainbook.tasks.losses import IGNORED
from trainbook.tasks.task import Collate, Facts
from trainbook.tasks.tokens import BuiltInTokenTask, TokenTask


def end_of(tokenizer: Tokenizer) -> int:
    if tokenizer.end_of_text is None:
        raise DataError("the tokenizer does not fit: a model that generates text needs an end-of-text token.")
    return tokenizer.end_of_text


class Seq2SeqTask(TokenTask):
    records = "pairs"
    specials = ("pad",)

    @classmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        end = (end_of(tokenizer),)
        return Frame(
            config.data.max_seq_length,
            suffix=end,
            target_suffix=end,
            max_target_positions=max_target_length(config),
        )

    @classmethod
    def collate(cls, config: Config, data: DataBundle, rows_each: int) -> Collate:
        return PairCollate(rows_each, Facts.of(data).pad)


class Seq2SeqModel(BuiltInTokenTask, Seq2SeqTask):
    """T5's: encoder and decoder over one embedding, and a head that may share it."""

    def __init__(self, config: Config, facts: Facts) -> None:
        super().__init__(config, facts)
        self.body: EncoderDecoder = build_t5(config, facts.vocab_size, max_target_length(config))
        # Embeddings of size 1 make logits of size sqrt(width): a head that shares them must make up for it.
        by_tying = self.body.shape.base_hidden_size**-0.5 if config.model.tie_embeddings else 1.0
        self.make_head(config, times=by_tying)

    def hidden(
        self,
        input_ids: Tensor,
        decoder_input_ids: Tensor,
        document_ids: Tensor | None = None,
        positions: Tensor | None = None,
        decoder_document_ids: Tensor | None = None,
        decoder_positions: Tensor | None = None,
    ) -> Tensor:
        return self.body(
            input_ids,
            decoder_input_ids,
            document_ids=document_ids,
            positions=positions,
            decoder_document_ids=decoder_document_ids,
            decoder_positions=decoder_positions,
        )

    def most_tokens(self, asked: int) -> int:
        return self.body.most_tokens(asked)

    def decoder(self, max_new_tokens: int) -> SearchableDecoder:
        return SearchableDecoder(self, max_new_tokens)


@dataclass
class DecoderState:
    """What has been read and written so far, a row each."""

    memory: EncoderMemory
    caches: list[KeyValueCache]


@dataclass(frozen=True)
class SearchableDecoder:
    """A model as a search wants it: the input is read once, and each token costs one position."""

    model: Seq2SeqModel
    max_new_tokens: int

    def start(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, DecoderState]:
        body, input_ids = self.model.body, batch["input_ids"]
        memory = body.remember(input_ids, batch.get("document_ids"))
        assert memory.kept is not None
        caches = body.decoder.new_caches(len(input_ids), memory.kept[0][0].dtype, self.max_new_tokens)
        return input_ids.new_full((len(input_ids),), self.model.facts.pad), DecoderState(memory, caches)

    def step(self, tokens_N: Tensor, state: DecoderState) -> Tensor:
        hidden = self.model.body.decode(tokens_N[:, None], state.memory, state.caches)
        return self.model.read_out(hidden[:, -1])[:, : self.model.vocab_size]

    def reorder(self, state: DecoderState, index_M: Tensor) -> DecoderState:
        for cache in state.caches:
            cache.reorder(index_M)
        return DecoderState(state.memory.reorder(index_M), state.caches)


@dataclass(frozen=True)
class PairCollate:
    rows_each: int
    pad: int

    def __call__(self, batch: Batch) -> StepBatch:
        return pair_micro_batches(batch, self.rows_each, self.pad)


def pair_micro_batches(batch: Batch, rows_each: int, pad: int) -> StepBatch:
    """The decoder reads its own target one step late, behind a start token, which is the padding token as in T5."""
    assert batch.targets is not None
    micro_batches = []
    num_targets = num_tokens = 0
    for part in parts(batch, rows_each):
        tokens, targets = part.take(batch.tokens), part.take(batch.targets)
        read = np.empty_like(targets.values)
        read[1:] = targets.values[:-1]
        read[targets.starts] = pad
        layout = part.layout(tokens.lengths, batch.width)
        decoder_layout = part.layout(targets.lengths, None)
        entries: dict[str, Tensor] = {
            "input_ids": layout.place(tokens.values, pad),
            "decoder_input_ids": decoder_layout.place(read, pad),
            "targets": decoder_layout.place(targets.values, IGNORED),
            **layout.masks(causal=False),
        }
        if batch.packed:
            entries |= decoder_layout.masks(causal=True, prefix="decoder_")
        micro_batches.append(entries)
        num_targets += len(targets.values)
        num_tokens += len(tokens.values) + len(targets.values)
    return StepBatch.of(batch, micro_batches, num_targets, num_tokens)
