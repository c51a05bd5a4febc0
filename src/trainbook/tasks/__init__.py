"""Kinds of work: what is predicted, by which head, with which loss and metrics."""

from trainbook.tasks.batches import StepBatch, to_device
from trainbook.tasks.causal import CausalCollate, CausalLanguageModel
from trainbook.tasks.generation import Sampling, generate_tokens
from trainbook.tasks.losses import IGNORED, cross_entropy_parts

__all__ = [
    "IGNORED",
    "CausalCollate",
    "CausalLanguageModel",
    "Sampling",
    "StepBatch",
    "cross_entropy_parts",
    "generate_tokens",
    "to_device",
]
