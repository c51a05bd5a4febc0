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


@dataclass(frozen=True)
class Role:
    kind: Kind
    fan_in: int
    fan_out: int
    residual: bool = False  # writes into the residual stream: its initial scale shrinks with depth

    @property
    def is_matrix(self) -> bool:
        return self.kind in (Kind.EMBEDDING, Kind.HIDDEN, Kind.OUTPUT)
