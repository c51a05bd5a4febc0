"""BERT: the core read in both directions."""

from __future__ import annotations

from trainbook.knobs.config import Config
from trainbook.models.core import Transformer
from trainbook.models.shape import shape_of


def build_bert(config: Config, vocab_size: int) -> Transformer:
    return Transformer(shape_of(config, vocab_size, causal=False))
