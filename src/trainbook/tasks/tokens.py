"""Predicting tokens, whichever ones: the objective of causal, masked and sequence-to-sequence models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainbook.knobs.config import Config
from trainbook.models import EncoderDecoder, OutputLinear, Transformer, initialize
from trainbook.models.core import Compile
from trainbook.tasks import beam
from trainbook.tasks import metrics as measures
from trainbook.tasks.losses import IGNORED, cross_entropy_parts, soft_cap
from trainbook.tasks.task import Facts, Task

PARTS = ("forward", "logits", "hidden")  # of a forward pass, that a subclass may have its own of


class TokenTask(Task):
    def __init__(self, config: Config, facts: Facts) -> None:
        super().__init__(config, facts)
        self.vocab_size = facts.vocab_size
        self.logit_soft_cap = config.model.logit_soft_cap

    def capped(self, logits: Tensor) -> Tensor:
        """Rows beyond the vocabulary exist for fast matrix products only: they never get probability. They are masked,
        not cut off: a width that is no multiple of anything would be slow."""
        logits = soft_cap(logits, self.logit_soft_cap)
        if logits.shape[-1] == self.vocab_size:
            return logits
        is_padding = torch.arange(logits.shape[-1], device=logits.device) >= self.vocab_size
        return logits.masked_fill(is_padding, float("-inf"))

    def hidden(self, **inputs: Tensor) -> Tensor:
        """What the network makes of its inputs, before the head: `logits` is `read_out` of it. A network that has its
        head inside gives its logits at once."""
        return self.logits(**inputs)

    def read_out(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        return self.losses_of(self.logits(**inputs), targets)

    def compile_around(self, compiled: Compile) -> None:
        """Head and loss as one function, where the network before them cannot be part of it: compiled together, they
        write the logits once. A subclass whose forward pass or logits are its own is left as it is."""
        owner = {name: next(kind for kind in type(self).__mro__ if name in vars(kind)) for name in PARTS}
        if owner["forward"] is not TokenTask:
            return
        if owner["logits"] is BuiltInTokenTask:
            begin, end = self.hidden, compiled(lambda hidden, targets: self.losses_of(self.read_out(hidden), targets))
        else:
            begin, end = self.logits, compiled(self.losses_of)
        self.forward = lambda targets, **inputs: end(begin(**inputs), targets)

    def losses_of(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return cross_entropy_parts(
            logits.flatten(0, -2),
            targets.flatten(),
            num_classes=self.vocab_size,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
        )

    def evaluation_sums(self, targets: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        """Sums in double precision, so that the result does not depend on how the set is cut into batches."""
        logits = self.logits(**inputs).flatten(0, -2).float()
        flat = targets.flatten()
        losses = F.cross_entropy(logits, flat, ignore_index=IGNORED, reduction="none")
        return {"cross_entropy": losses.double().sum(), "correct": (logits.argmax(-1) == flat).sum()}

    def metrics(self, sums: Mapping[str, Tensor], num_targets: int) -> dict[str, float]:
        loss = float(sums["cross_entropy"]) / num_targets
        return {
            "loss": loss,
            "perplexity": measures.perplexity(loss),
            "accuracy": float(sums["correct"]) / num_targets,
            "bits_per_token": measures.bits_per_token(loss),
        }

    def write(self, inputs: Mapping[str, Tensor], *, max_new_tokens: int, num_beams: int = 1) -> list[list[int]]:
        """The answer to each input, as tokens without their end. The task must be a `beam.Decoder`, or bring one."""
        max_new_tokens = self.most_tokens(max_new_tokens)
        written = beam.write(
            self.decoder(max_new_tokens),
            inputs,
            max_new_tokens=max_new_tokens,
            end_tokens=self.facts.ends,
            num_beams=num_beams,
        )
        return [answer.tokens for answer in written]

    def most_tokens(self, asked: int) -> int:
        return asked

    def decoder(self, max_new_tokens: int) -> beam.Decoder[Any]:
        return self  # pyright: ignore[reportReturnType]


class BuiltInTokenTask(TokenTask):
    """With a network of ours: a body that gives hidden states, and a head over the vocabulary that may share its
    embedding. A subclass makes the body, and then the head."""

    body: Transformer | EncoderDecoder

    def make_head(self, config: Config, *, bias: bool = False, times: float = 1.0) -> None:
        shape = self.body.shape
        self.is_tied = config.model.tie_embeddings
        multiplier = times * shape.logit_multiplier
        self.head = OutputLinear(shape.hidden_size, shape.vocab_rows, bias=bias, multiplier=multiplier)
        self.tie()

    def tie(self) -> None:
        if self.is_tied:
            self.head.weight = self.body.token_embedding.weight

    def initialize(self, seed: int) -> None:
        initialize(self, self.body.shape, seed)

    def logits(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return self.read_out(self.hidden(*inputs, **named))

    def read_out(self, hidden: Tensor) -> Tensor:
        return self.capped(self.head(hidden))
