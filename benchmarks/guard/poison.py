"""Bad data: where it is, and what is bad about it. The held-out half adds to each: guard.held_out.bad_data."""

from __future__ import annotations

from random import Random
from types import ModuleType

import torch
from torch import Tensor

PLACEMENTS = ("burst-1", "burst-3", "burst-12", "burst-50", "one-sample", "random-1", "random-5")
KINDS = ("random-targets", "constant-inputs", "nan", "scaled", "garbled")
FILE_KINDS = ("garbled-rows", "mislabelled-rows", "repeated-rows")
WHERE = {
    "one-sample": "one sample in each of 100 batches",
    "random-1": "1 % of batches, at random",
    "random-5": "5 % of batches, at random",
    "burst-1": "one batch",
    "rows-1": "1 % of the rows of the file",
    "rows-6": "6 % of the rows of the file",
}
WHAT = {
    "random-targets": "random targets",
    "constant-inputs": "constant inputs",
    "nan": "NaN in the inputs",
    "scaled": "100 times as large",
    "garbled": "garbled inputs",
    "random-labels": "random labels or tokens",
    "repeated-tokens": "one token repeated",
    "nan-gradient": "a NaN gradient",
    "garbled-rows": "garbled rows of the file",
    "mislabelled-rows": "rows of the file with a wrong label",
    "repeated-rows": "rows of the file with one symbol repeated",
}
EARLIEST = 50  # before it, nobody knows what is usual
ONE_SAMPLE_BATCHES = 100


def kinds_in(half: str) -> list[str]:
    return [*KINDS, *_held_out().KINDS] if half == "held-out" else list(KINDS)


def file_kinds_in(half: str) -> list[str]:
    """Of bad rows in a data file."""
    return [*FILE_KINDS, *_held_out().IN_FILE] if half == "held-out" else list(FILE_KINDS)


def placements_in(half: str) -> list[str]:
    return [*PLACEMENTS, *_held_out().PLACEMENTS] if half == "held-out" else list(PLACEMENTS)


def where(placement: str) -> str:
    """In words."""
    return WHERE.get(placement) or f"{placement.removeprefix('burst-')} batches in a row"


def what(kind: str) -> str:
    return WHAT.get(kind) or _held_out().WHAT[kind]


def _held_out() -> ModuleType:
    """Not so much as imported for the development half."""
    from guard.held_out import bad_data

    return bad_data


def bad_steps(placement: str, seed: int, steps: int) -> list[int]:
    """The steps, counted from 1, whose batches are bad: about the middle of the run, or scattered."""
    draw = Random(f"{placement} {seed}")
    if placement.startswith("random-"):
        share = int(placement.removeprefix("random-")) / 100
        count = max(1, round(share * (steps - EARLIEST)))
        return sorted(draw.sample(range(EARLIEST + 1, steps + 1), count))
    length = ONE_SAMPLE_BATCHES if placement == "one-sample" else int(placement.removeprefix("burst-"))
    first = draw.randint(steps * 2 // 5, steps * 2 // 5 + 40)
    return list(range(first, min(first + length, steps + 1)))


def bad_rows(placement: str, batch: int) -> slice:
    """Of a bad batch: all of its samples, or the first one alone."""
    return slice(0, 1) if placement == "one-sample" else slice(0, batch)


def spoilt(kind: str, x: Tensor, y: Tensor, draw: torch.Generator, *, classes: int | None) -> tuple[Tensor, Tensor]:
    """The samples with that fault. `classes`: targets are that many classes; None: numbers."""
    if kind == "random-targets":
        if classes is None:
            return x, 3 * torch.randn(y.shape, generator=draw)
        return x, torch.randint(classes, y.shape, generator=draw)
    if kind == "constant-inputs":
        return x[:1].expand_as(x).clone() if len(x) > 1 else torch.zeros_like(x), y
    if kind == "nan":
        x = x.clone()
        x[:, 0] = torch.nan
        return x, y
    if kind == "scaled":
        return 100 * x, y
    if kind == "garbled":
        return x[:, torch.randperm(x.shape[1], generator=draw)] * 2, y
    return _held_out().spoilt(kind, x, y, classes=classes)
