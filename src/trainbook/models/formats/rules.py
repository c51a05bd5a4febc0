"""A parameter here, and the same numbers in a file of another format: one rule reads both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

# vocabulary: a row for each token, cut to the tokens that there are. positions: a row for each, cut to those in use.
# labels: a row for each label.
Rows = Literal["all", "vocabulary", "positions", "labels"]


@dataclass(frozen=True)
class WeightRule:
    native: str
    foreign: tuple[str, ...]  # several: their rows lie below each other in ours
    parts: tuple[int, ...] = ()  # rows of each foreign one, if there are several
    transposed: bool = False
    rows: Rows = "all"
    may_be_new: bool = False  # a head: where the file has none, it starts from its first values
    zeros: tuple[int, ...] | None = None  # the shape of zeros that stand for a parameter which we do without
    otherwise: str | None = None  # what a file has instead, if not the first name
    copies: tuple[str, ...] = ()  # names under which the same numbers are written once more

    def to_native(self, tensors: Sequence[Tensor]) -> Tensor:
        tensors = [tensor.T if self.transposed else tensor for tensor in tensors]
        return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))

    def native_shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        turned = [tuple(reversed(shape)) if self.transposed else tuple(shape) for shape in shapes]
        return (sum(shape[0] for shape in turned), *turned[0][1:])

    def to_foreign(self, tensor: Tensor) -> dict[str, Tensor]:
        pieces = tensor.split(list(self.parts)) if self.parts else (tensor,)
        written = dict(zip(self.foreign, pieces, strict=True)) | dict.fromkeys(self.copies, tensor)
        return {name: (piece.T if self.transposed else piece).contiguous().clone() for name, piece in written.items()}


def linear(
    native: str,
    *foreign: str,
    parts: Sequence[int] = (),
    transposed: bool = False,
    bias: int | None = None,
    may_be_new: bool = False,
) -> Iterator[WeightRule]:
    """A matrix; with `bias`, that many shifts, which are zeros where our layer has none."""
    rows = tuple(parts) if len(foreign) > 1 else ()
    yield WeightRule(f"{native}.weight", _each(foreign, "weight"), rows, transposed, may_be_new=may_be_new)
    if bias is not None:
        yield WeightRule(f"{native}.bias", _each(foreign, "bias"), rows, may_be_new=may_be_new, zeros=(bias,))


def norm(native: str, foreign: str, width: int, *, shift: bool, may_be_new: bool = False) -> Iterator[WeightRule]:
    yield WeightRule(f"{native}.weight", (f"{foreign}.weight",), may_be_new=may_be_new)
    if shift:
        yield WeightRule(f"{native}.bias", (f"{foreign}.bias",), may_be_new=may_be_new, zeros=(width,))


def _each(foreign: Sequence[str], kind: str) -> tuple[str, ...]:
    return tuple(f"{name}.{kind}" for name in foreign)


def to_foreign(rules: Sequence[WeightRule], parameters: Mapping[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
    """Every tensor that a file of the format has."""
    written: dict[str, Tensor] = {}
    for rule in rules:
        tensor = parameters.get(rule.native)
        if tensor is None:
            assert rule.zeros is not None, f"the format needs {rule.native}"
            tensor = torch.zeros(rule.zeros, dtype=next(iter(parameters.values())).dtype)
        tensor = tensor.detach().cpu()
        written |= rule.to_foreign(tensor[:vocab_size] if rule.rows == "vocabulary" else tensor)
    return written
