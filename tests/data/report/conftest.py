from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from trainbook.data.report.build import report
from trainbook.data.report.gather import SplitReport, gather
from trainbook.data.report.lengths import encode
from trainbook.data.samples.frame import Frame
from trainbook.data.sources.records import Document
from trainbook.data.tokenizers import ByteTokenizer, Tokenizer
from trainbook.knobs import load

WORDS = [f"word{number}" for number in range(200)]


def some_texts(count: int, seed: int, longest: int = 12) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, longest))) for _ in range(count)]


def side_of(
    documents: list[Document] | list[str], limit: int = 1000, tokenizer: Tokenizer | None = None
) -> SplitReport:
    made = [
        document if isinstance(document, Document) else Document(document, f"file:{number}", 0)
        for number, document in enumerate(documents)
    ]
    side = gather(made, limit)
    side.encoded = encode(side.sample, tokenizer or ByteTokenizer())
    return side


@pytest.fixture
def report_of() -> Callable[..., dict[str, Any]]:
    """The report on these documents of training and validation, as bytes, with these overrides."""

    def make(
        train: list[Any],
        validation: list[Any] | None = None,
        *overrides: str,
        limit: int = 1000,
        tokenizer: Tokenizer | None = None,
        frame: Frame | None = None,
        fields: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        config = load({"data": {"source": "some.jsonl", "samples": "documents"}}, overrides).config
        sides = {"train": side_of(train, limit, tokenizer)}
        if validation is not None:
            sides["validation"] = side_of(validation, limit, tokenizer)
        frame = frame or Frame(config.data.max_seq_length)
        return report(config, sides, tokenizer or ByteTokenizer(), frame, config.data.samples, fields)

    return make


@pytest.fixture
def texts() -> Callable[..., list[str]]:
    return some_texts
