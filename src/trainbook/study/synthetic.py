"""Made-up data: random tokens in rows as long as they may be, which is what memory must have room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from trainbook.data import DataBundle, Tokenizer, TokenWindows
from trainbook.errors import UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.tasks import task_class

ROLES = ("pad", "begin", "separator", "mask", "unknown")
SENTINELS = 100
TASKS = ("causal", "masked", "span")  # tasks of text alone


@dataclass(frozen=True)
class Vocabulary:
    """In place of a tokenizer: its tokens stand for nothing. The first ones are special, the last ones sentinels."""

    vocab_size: int
    end_of_text: int | None = None
    special_names: Mapping[int, str] = field(default_factory=dict)

    @property
    def padding(self) -> int:
        return ROLES.index("pad")

    def special(self, role: str) -> int | None:
        return ROLES.index(role) if role in ROLES else None

    @property
    def sentinels(self) -> tuple[int, ...]:
        return tuple(range(self.vocab_size - 1, max(self.vocab_size - 1 - SENTINELS, len(ROLES)), -1))


def synthetic_data(config: Config, vocab_size: int, rows: int, seed: int = 0) -> DataBundle:
    """So many rows, each of the full length."""
    task = task_name(config)
    if task not in TASKS:
        raise UserError(
            f"synthetic data works with the tasks {', '.join(TASKS)}, but got {task}, which needs real targets."
        )
    # end_of_text: a decoder's answers end with it
    vocabulary = cast(Tokenizer, Vocabulary(vocab_size, end_of_text=vocab_size - 1 if task == "span" else None))
    frame = task_class(config).frame(config, vocabulary)
    length = frame.window_length or frame.room
    ordinary = max(len(ROLES) + 1, vocab_size - SENTINELS - 1) if task == "span" else vocab_size
    stream = np.random.default_rng(seed).integers(
        len(ROLES), ordinary, size=rows * length + frame.shift, dtype=np.uint32
    )
    samples = TokenWindows(stream, frame, shuffle=False, seed=seed)
    return DataBundle(samples, None, vocabulary, fingerprint="synthetic", summary={})
