"""Causal language modelling: predict each next token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainbook.data.loader import Batch
from trainbook.knobs.config import Config
from trainbook.models import OutputLinear, Transformer, build_gpt, initialise
from trainbook.models.core import KeyValueCache
from trainbook.tasks.batches import StepBatch
from trainbook.tasks.losses import IGNORED, cross_entropy_parts, soft_cap


class CausalLanguageModel(nn.Module):
    """A body that reads from left to right, a head over the vocabulary, and the loss between them."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        super().__init__()
        self.body: Transformer = build_gpt(config, vocab_size)
        self.vocab_size = vocab_size
        self.logit_soft_cap = config.model.logit_soft_cap
        self.label_smoothing = config.training.label_smoothing
        self.z_loss = config.training.z_loss
        shape = self.body.shape
        self.head = OutputLinear(shape.hidden_size, shape.vocab_rows, bias=False)
        if config.model.tie_embeddings:
            self.head.weight = self.body.token_embedding.weight

    @classmethod
    def build(cls, config: Config, vocab_size: int, device: torch.device, dtype: torch.dtype) -> CausalLanguageModel:
        """Built without memory on the meta device, then given its first values where it will live."""
        with torch.device("meta"):
            model = cls(config, vocab_size).to(dtype)
        model.to_empty(device=device)
        if config.model.tie_embeddings:
            model.head.weight = model.body.token_embedding.weight
        initialise(model, model.body, config.training.seed)
        return model

    def logits(self, hidden: Tensor) -> Tensor:
        """One number for each row of the head.

        Rows beyond the vocabulary exist for fast matrix products only: they never get probability. They are masked, not
        cut off: a width that is no multiple of anything would be slow.
        """
        logits = soft_cap(self.head(hidden), self.logit_soft_cap)
        if logits.shape[-1] == self.vocab_size:
            return logits
        is_padding = torch.arange(logits.shape[-1], device=logits.device) >= self.vocab_size
        return logits.masked_fill(is_padding, float("-inf"))

    def forward(self, input_ids: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Named sums over the targets of this micro-batch."""
        logits = self.logits(self.body(input_ids))
        return cross_entropy_parts(
            logits.flatten(0, 1),
            targets.flatten(),
            num_classes=self.vocab_size,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
        )

    def evaluation_sums(self, input_ids: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Sums in double precision, so that the result does not depend on how the set is cut into batches."""
        logits = self.logits(self.body(input_ids)).flatten(0, 1).float()
        flat = targets.flatten()
        losses = F.cross_entropy(logits, flat, ignore_index=IGNORED, reduction="none")
        return {"cross_entropy": losses.double().sum(), "correct": (logits.argmax(-1) == flat).sum()}

    @staticmethod
    def metrics(sums: Mapping[str, float], num_targets: int) -> dict[str, float]:
        loss = sums["cross_entropy"] / num_targets
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "accuracy": sums["correct"] / num_targets,
            "bits_per_token": loss / math.log(2),
        }

    def next_logits(self, input_ids: Tensor, caches: list[KeyValueCache]) -> Tensor:
        return self.logits(self.body(input_ids, caches)[:, -1])[:, : self.vocab_size]


@dataclass(frozen=True)
class CausalCollate:
    """Cut a global batch into micro-batches of inputs and targets shifted by one."""

    micro_batch_size: int

    def __call__(self, batch: Batch) -> StepBatch:
        targets = batch.tokens[:, 1:].astype(np.int64)
        columns = np.arange(targets.shape[1])
        targets = np.where(columns < (batch.lengths - 1)[:, None], targets, IGNORED)
        inputs = torch.from_numpy(np.ascontiguousarray(batch.tokens[:, :-1], dtype=np.int64))
        targets = torch.from_numpy(targets)
        micro_batches = [
            {
                "input_ids": inputs[start : start + self.micro_batch_size],
                "targets": targets[start : start + self.micro_batch_size],
            }
            for start in range(0, len(batch.ids), self.micro_batch_size)
        ]
        num_targets = int((batch.lengths - 1).sum())
        return StepBatch(micro_batches, num_targets, num_tokens=num_targets, ids=batch.ids, epoch=batch.epoch)
