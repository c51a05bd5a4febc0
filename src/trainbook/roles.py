"""What a parameter is, so that optimizers and checkpoints read roles and never guess from names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    EMBEDDING = "embedding"  # a table of rows looked up by id; also the output matrix when the two are tied
    HIDDEN = "hidden"  # a matrix whose two sides both grow with the width
    OUTPUT = "output"  # the matrix from the width to the vocabulary or the labels
    NORM = "norm"  # the gain or shift of a norm
    BIAS = "bias"
    SCALAR = "scalar"  # a number that multiplies whole tensors


class Grows(Enum):
    """What the sides of a parameter grow with when a model is widened."""

    WIDTH = "width"
    HEAD = "head"  # the width of one: shared by all heads, such as the gain of their norm
    NUM_HEADS = "num_heads"  # a number for each head
    NOT = "not"  # such as a shift of each logit


@dataclass(frozen=True)
class Role:
    kind: Kind
    fan_in: int
    fan_out: int
    residual: bool = False  # writes into the residual stream: its initial scale shrinks with depth
    in_block: bool = False  # one of many blocks, each of which adds to the residual stream
    grows: Grows = Grows.WIDTH

    @property
    def is_matrix(self) -> bool:
        return self.kind in (Kind.EMBEDDING, Kind.HIDDEN, Kind.OUTPUT)
