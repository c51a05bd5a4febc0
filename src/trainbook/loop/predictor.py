"""Prediction on texts, with metrics if the labels are known: what all tasks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainbook.data import DataBundle
from trainbook.data.batches import Batch, Ragged
from trainbook.data.frame import Frame
from trainbook.knobs.config import Config
from trainbook.loop.inputs import Input
from trainbook.loop.load_task import LoadedTask
from trainbook.tasks import to_device

Answer = dict[str, Any]


class Predictor(ABC):
    """From inputs to answers, with whatever they are compared by added up."""

    def __init__(self, restored: LoadedTask, device: torch.device) -> None:
        self.task, self.tokenizer, self.facts = restored.task, restored.tokenizer, restored.facts
        self.config: Config = restored.config
        self.device = device
        self.frame = type(self.task).frame(self.config, self.tokenizer)
        self.names = self.facts.label_names
        self.sums: dict[str, Any] = {}
        self.num_judged = self.num_rows = 0
        self.task.eval()

    @abstractmethod
    def answers(self, inputs: Sequence[Input], size: int) -> list[Answer]:
        """One for each input, computed so many at a time."""

    @abstractmethod
    def metrics(self) -> dict[str, float]: ...

    def encode(self, inputs: Sequence[Input]) -> list[np.ndarray]:
        """Tokens as training has them: cut where they are too many, with what the task puts around them."""
        encoded = self.tokenizer.encode_many([each.text for each in inputs])
        return [framed_tokens(tokens, self.frame, self.config.data.truncation_side) for tokens in encoded]

    def run(self, rows: list[np.ndarray], size: int, **extras: Any) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
        """Micro-batches on the device, rows of similar length together; with each, which rows they are."""
        order = np.argsort([len(row) for row in rows], kind="stable")
        data = _as_bundle(self.facts, self.tokenizer)
        collate = type(self.task).collate(self.config, data, size)
        for start in range(0, len(order), size):
            which = order[start : start + size]
            batch = _batch(which, rows, **extras)
            batch.ids = batch.ids + self.num_rows  # what is drawn by chance depends on it, and on nothing else
            (entries,) = collate(batch).micro_batches
            yield which, to_device(entries, self.device)
        self.num_rows += len(rows)

    def add(self, **sums: Any) -> None:
        for name, value in sums.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value


def framed_tokens(tokens: np.ndarray, frame: Frame, side: str, fill: int | None = None) -> np.ndarray:
    """Cut to what fits, between prefix and suffix; or, for numbers beside the tokens, between as many of `fill`."""
    room = frame.room
    kept = tokens[len(tokens) - room :] if side == "left" and len(tokens) > room else tokens[:room]
    around = [
        np.array(part if fill is None else [fill] * len(part), dtype=np.int64) for part in (frame.prefix, frame.suffix)
    ]
    return np.concatenate([around[0], kept, around[1]])


def windows(tokens: np.ndarray, frame: Frame, end: int | None, begin: Sequence[int] = ()) -> list[np.ndarray]:
    """The whole text, in parts that fit. A causal model's overlap by a token: all but the first are targets once."""
    prefix, suffix = frame.prefix, frame.suffix
    if frame.shift:  # what begins and ends a text stands there only; an end was learned, be it only as a seam
        tokens, prefix, suffix = _around(tokens, prefix or begin, suffix or (() if end is None else (end,))), (), ()
    length = frame.window_length or frame.max_length - len(prefix) - len(suffix)
    starts = range(0, len(tokens) - frame.shift, length - frame.shift)
    return [_around(tokens[start : start + length], prefix, suffix) for start in starts]


def _around(tokens: np.ndarray, prefix: Sequence[int], suffix: Sequence[int]) -> np.ndarray:
    return np.concatenate([np.array(prefix, dtype=np.int64), tokens, np.array(suffix, dtype=np.int64)])


def _batch(
    which: np.ndarray,
    rows: list[np.ndarray],
    labels: np.ndarray | None = None,
    marks: list[np.ndarray] | None = None,
    targets: list[np.ndarray] | None = None,
) -> Batch:
    count = len(which)
    return Batch(
        ids=which.astype(np.int64),
        epochs=np.full(count, -1),
        tokens=Ragged.of([rows[row] for row in which]),
        rows=np.arange(count),
        num_rows=count,
        width=None,
        epoch=0.0,
        labels=None if labels is None else labels[which],
        marks=None if marks is None else Ragged.of([marks[row] for row in which]),
        targets=None if targets is None else Ragged.of([targets[row] for row in which]),
    )


def _as_bundle(facts: Any, tokenizer: Any) -> DataBundle:
    """What a task's collate asks of its data, where there are no data to train on."""
    nothing: Any = None
    return DataBundle(nothing, None, tokenizer, "", {}, facts.label_names, facts.bytes_per_token)
