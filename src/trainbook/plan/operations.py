"""How many operations a step takes.

Operations: 2 for each weight that multiplies a token and 4 x length x query width for attention (half of it where a
token sees only what is before it) forward, twice that backward, and the forward pass once more where blocks are
recomputed in full.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainbook.knobs.config import Config
from trainbook.plan.activations import lengths_of
from trainbook.plan.network import Network


@dataclass(frozen=True)
class Operations:
    """Of one rank in one step."""

    forward: float
    recomputed: float
    is_adapted: bool = False  # the backward pass goes through frozen weights, and computes no gradients of theirs

    @property
    def model(self) -> float:
        """What the model takes, without what is computed twice: what utilization is stated of (MFU)."""
        return (2 if self.is_adapted else 3) * self.forward

    @property
    def all(self) -> float:
        return self.model + self.recomputed


def operations(config: Config, model: Network, rows: int) -> Operations:
    lengths = lengths_of(config)
    blocks = 0.0
    for stack in model.stacks:
        length = lengths.of(stack)
        for weight in stack.block:
            reads_encoder = weight.name.startswith("cross_attention.key_value")
            tokens = rows * (lengths.read if reads_encoder else length)
            blocks += stack.count * 2 * weight.count * tokens if weight.multiplies else 0
        pairs = length * length * (0.5 if stack.causal else 1.0) + (length * lengths.read if stack.looks_across else 0)
        blocks += stack.count * 4 * rows * pairs * model.query_size
    head = sum(weight.count for weight in model.rest if weight.multiplies)
    if model.is_tied and not any(weight.name == "head.weight" for weight in model.rest):
        head += model.num_outputs * model.hidden_size
    forward = blocks + 2 * head * rows * lengths.targets
    recomputed = blocks if config.memory.gradient_checkpointing == "full" else 0.0
    return Operations(forward, recomputed, model.is_adapted)
