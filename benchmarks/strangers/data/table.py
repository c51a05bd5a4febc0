"""Samples as columns: `x` is what a model is given, `y` what it should say (none for a language model)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Table:
    """`x` and `y` have a row a sample; texts and labels that are words are arrays of objects."""

    x: np.ndarray
    y: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: np.ndarray | slice) -> Table:
        return Table(self.x[rows].copy(), None if self.y is None else self.y[rows].copy())

    def copy(self) -> Table:
        return self.take(slice(None))

    def joined(self, other: Table) -> Table:
        y = None if self.y is None or other.y is None else np.concatenate([self.y, other.y])
        return Table(np.concatenate([self.x, other.x]), y)

    @property
    def labels(self) -> np.ndarray:
        assert self.y is not None
        return self.y


def split(table: Table, num_valid: int, rng: np.random.Generator) -> tuple[Table, Table]:
    order = rng.permutation(len(table))
    return table.take(order[num_valid:]), table.take(order[:num_valid])


def objects(values: list) -> np.ndarray:
    """An array of Python objects, one a row."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
