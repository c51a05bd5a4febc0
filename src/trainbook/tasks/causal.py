"""Causal language modelling: predict each next token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from trainbook.data import DataBundle, Tokenizer
from trainbook.data.batches.filling import Batch
from trainbook.data.samples.frame import Frame
from trainbook.data.tokenizers.around import template
from trainbook.knobs.config import Config
from trainbook.models import KeyValueCache, Transformer, build_gpt
from trainbook.tasks import metrics as measures
from trainbook.tasks.layout import StepBatch, parts
from trainbook.tasks.losses import IGNORED
from trainbook.tasks.task import Collate, Facts
from trainbook.tasks.tokens import BuiltInTokenTask, TokenTask


class CausalTask(TokenTask):
    """The objective; whose network it is, is a matter of the subclass."""

    begins_documents = True

    @classmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        """A document begins as the tokenizer begins a text, with <s> if it is a Llama's, and ends with the end of text,
        unless it was cut: nothing should be learned of an end there. A stream of all text has both already."""
        if config.data.samples == "windows":
            return Frame(config.data.max_seq_length, keep_suffix=False, shift=1)
        begin, end = template(tokenizer)[0], () if tokenizer.end_of_text is None else (tokenizer.end_of_text,)
        return Frame(config.data.max_seq_length, prefix=begin, suffix=end, keep_suffix=False, shift=1)

    @classmethod
    def collate(cls, config: Config, data: DataBundle, rows_each: int) -> Collate:
        return CausalCollate(rows_each, Facts.of(data).pad)

    def metrics(self, sums: Mapping[str, Tensor], num_targets: int) -> dict[str, float]:
        metrics = super().metrics(sums, num_targets)
        if self.facts.bytes_per_token > 0:
            metrics["bits_per_byte"] = measures.bits_per_byte(metrics["loss"], self.facts.bytes_per_token)
        return metrics


class ChatTask(CausalTask):
    """The same on conversations, of which only the answers are learned."""

    records = "chat"

    @classmethod
    def frame(cls, config: Config, tokenizer: Tokenizer) -> Frame:
        return Frame(config.data.max_seq_length, keep_suffix=False, shift=1)  # the template writes its own ends

    def metrics(self, sums: Mapping[str, Tensor], num_targets: int) -> dict[str, float]:
        metrics = super().metrics(sums, num_targets)
        metrics.pop("bits_per_byte", None)  # the bytes are those of whole conversations, the targets are not
        return metrics


class CausalLanguageModel(BuiltInTokenTask, CausalTask):
    """A body that reads from left to right, and a head over the vocabulary."""

    def __init__(self, config: Config, facts: Facts) -> None:
        super().__init__(config, facts)
        self.body: Transformer = build_gpt(config, facts.vocab_size)
        self.make_head(config)

    def hidden(self, input_ids: Tensor, document_ids: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        return self.body(input_ids, document_ids=document_ids, positions=positions)

    def next_logits(self, input_ids: Tensor, caches: list[KeyValueCache]) -> Tensor:
        return self.read_out(self.body(input_ids, caches)[:, -1])[:, : self.vocab_size]


class ChatModel(ChatTask, CausalLanguageModel):
    pass


@dataclass(frozen=True)
class CausalCollate:
    """Inputs are all tokens but the last, targets all but the first; what is not to be learned is no target."""

    rows_each: int
    pad: int = 0

    def __call__(self, batch: Batch) -> StepBatch:
        micro_batches = []
        num_targets = num_tokens = 0
        for part in parts(batch, self.rows_each):
            tokens = part.take(batch.tokens)
            ends = np.cumsum(tokens.lengths)
            is_first, is_last = np.zeros(len(tokens.values), dtype=bool), np.zeros(len(tokens.values), dtype=bool)
            is_first[ends - tokens.lengths] = is_last[ends - 1] = True
            targets = tokens.values[~is_first]
            if batch.marks is not None:
                learned = part.take(batch.marks).values[~is_first] == 1
                targets = np.where(learned, targets, IGNORED)
            layout = part.layout(tokens.lengths - 1, batch.width)
            micro_batches.append(
                {
                    "input_ids": layout.place(tokens.values[~is_last], self.pad),
                    "targets": layout.place(targets, IGNORED),
                    **layout.masks(causal=True),
                }
            )
            num_targets += int((targets != IGNORED).sum())
            num_tokens += len(targets)
        return StepBatch.of(batch, micro_batches, num_targets, num_tokens)
