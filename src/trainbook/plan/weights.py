"""Weights by name and shape, and networks made of them: what every formula counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainbook.roles import Kind


@dataclass(frozen=True)
class Weight:
    name: str
    shape: tuple[int, ...]
    kind: Kind
    is_frozen: bool = False
    packed_bits: int | None = None  # of a frozen matrix of few bits
    is_trained_beside: bool = False  # frozen ones: an adapter, or a new head

    @property
    def is_packed(self) -> bool:
        return self.packed_bits is not None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def multiplies(self) -> bool:
        """Each token is multiplied by it, where an embedding is only looked up."""
        return self.kind in (Kind.HIDDEN, Kind.OUTPUT) and len(self.shape) == 2

    def cut(self, shards: int) -> int:
        """The largest part of it where rows are dealt out, as FSDP2 does: the first rank's."""
        return math.ceil(self.shape[0] / shards) * math.prod(self.shape[1:])

    def dealt(self, shards: int) -> int:
        """The largest part of it where single numbers are dealt out."""
        return math.ceil(self.count / shards)


@dataclass(frozen=True)
class StackShape:
    """Blocks that are all alike."""

    name: str  # of its list of blocks
    count: int
    block: tuple[Weight, ...]  # names within a block
    causal: bool
    looks_across: bool = False  # at what an encoder has read


@dataclass(frozen=True)
class Network:
    stacks: tuple[StackShape, ...]
    rest: tuple[Weight, ...]  # embeddings, final norms and the head
    hidden_size: int
    query_size: int
    key_value_size: int
    inner_size: int
    num_heads: int
    num_outputs: int  # numbers that the head gives for each position: rows of the vocabulary, or labels
    gated: bool
    is_tied: bool
    is_adapted: bool = False  # frozen, with adapters beside it

    def weights(self) -> Iterator[Weight]:
        """All of them, by the names that the model gives them."""
        yield from self.rest
        for stack in self.stacks:
            for number in range(stack.count):
                for weight in stack.block:
                    yield replace(weight, name=f"{stack.name}.{number}.{weight.name}")

    def grouped(self) -> Iterator[tuple[Weight, int]]:
        """The same, each kind of weight with how often it is there: sums need no list of thousands."""
        yield from ((weight, 1) for weight in self.rest)
        yield from ((weight, stack.count) for stack in self.stacks for weight in stack.block)

    def units(self) -> list[tuple[int, tuple[Weight, ...]]]:
        """What FSDP2 brings together at a time, and how often it is there: first the rest, then blocks.

        A list with a single block is no stack to be cut: that block belongs to the rest.
        """
        alone = [weight for stack in self.stacks if stack.count == 1 for weight in stack.block]
        return [(1, (*self.rest, *alone)), *((stack.count, stack.block) for stack in self.stacks if stack.count > 1)]

    @property
    def parameters(self) -> int:
        return sum(weight.count * times for weight, times in self.grouped())

    @property
    def trained(self) -> int:
        """Parameters that are not frozen."""
        return sum(weight.count * times for weight, times in self.grouped() if not weight.is_frozen)

    @property
    def num_blocks(self) -> int:
        return sum(stack.count for stack in self.stacks)

    def by_part(self) -> dict[str, int]:
        """Parameters: the embeddings, the matrices of blocks, norms and biases, the head if it is one of its own."""
        parts: dict[str, int] = {"embeddings": 0, "blocks": 0, "norms and biases": 0, "head": 0}
        names = {Kind.EMBEDDING: "embeddings", Kind.HIDDEN: "blocks", Kind.OUTPUT: "head"}
        for weight, times in self.grouped():
            parts[names.get(weight.kind, "norms and biases")] += weight.count * times
        return parts
