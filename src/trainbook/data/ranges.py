"""Ranges of something that is counted, such as the tokens of a stream or the documents of a table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def _none() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Ranges:
    """In order, and none of them touches another: what is made by `of`."""

    begins: np.ndarray = field(default_factory=_none)
    ends: np.ndarray = field(default_factory=_none)  # not included

    @classmethod
    def of(cls, begins: np.ndarray, ends: np.ndarray) -> Ranges:
        """What these ranges cover together, be they in any order and over each other."""
        if len(begins) == 0:
            return cls()
        order = np.argsort(begins, kind="stable")
        begins, reached = begins[order].astype(np.int64), np.maximum.accumulate(ends[order]).astype(np.int64)
        is_new = np.concatenate([[True], begins[1:] > reached[:-1]])
        return cls(begins[is_new], reached[np.append(np.flatnonzero(is_new)[1:] - 1, len(begins) - 1)])

    def __len__(self) -> int:
        return len(self.begins)

    def __or__(self, other: Ranges) -> Ranges:
        return Ranges.of(np.concatenate([self.begins, other.begins]), np.concatenate([self.ends, other.ends]))

    @property
    def size(self) -> int:
        """How much they cover."""
        return int((self.ends - self.begins).sum())

    def touch(self, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Of each of these ranges, whether it shares anything with this."""
        if len(self) == 0:
            return np.zeros(len(begins), dtype=bool)
        last = np.searchsorted(self.begins, ends, side="left") - 1  # the last one that begins before the end
        return (last >= 0) & (self.ends[last] > begins)
