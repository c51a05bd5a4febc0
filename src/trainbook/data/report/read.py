"""From a configuration to both sides of its data as tokens, read as training would read them but kept in no cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trainbook.data import Request, open_sources, sample_kind
from trainbook.data.chat import encode_with_specials, special_tokens
from trainbook.data.fields import Wanted
from trainbook.data.report.build import report
from trainbook.data.report.contradictions import contradictions
from trainbook.data.report.gather import Side, encode, gather
from trainbook.data.sides import open_sides
from trainbook.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    check_specials,
    check_vocab_size,
    load_tokenizer,
    tokenizer_config,
    train_bpe,
)
from trainbook.data.tokenizers.training import training_pieces
from trainbook.knobs.config import Config

DEFAULT_LIMIT = 20_000  # documents of each side: enough for every share to be right to about a hundredth


class Progress(Protocol):
    """Told what is being worked on."""

    def begin(self, stage: str, total: int | None = None) -> None: ...

    def advance(self, count: int) -> None: ...


@dataclass
class Silent:
    def begin(self, stage: str, total: int | None = None) -> None:
        pass

    def advance(self, count: int) -> None:
        pass


def report_on(
    config: Config, request: Request, limit: int = DEFAULT_LIMIT, progress: Progress | None = None
) -> dict[str, Any]:
    """Everything that is said of the data of a configuration, read as its task asks."""
    progress = progress or Silent()
    data, seed = config.data, config.training.seed
    asked = tokenizer_config(data.tokenizer, data.vocab_size, request.specials)
    source, validation = open_sources(data, request)
    progress.begin("reading")
    opened = open_sides(source, validation, data.validation_ratio, gopher_filter=data.gopher_filter)

    parts = {"train": (opened.train, source), "validation": (opened.validation, validation or source)}
    sides: dict[str, Side] = {}
    contradictory = contradictions(opened.surveys)
    look_at = {} if contradictory is None else {"look_at": contradictory.look_at}
    for number, (name, (documents, its_source)) in enumerate(parts.items()):
        if documents is not None:
            progress.begin(f"looking at {name}")
            sides[name] = gather(documents(), limit, seed + number, its_source.root, progress.advance, **look_at)
    _passed_over(sides, opened.facts)

    progress.begin("making the tokenizer")
    tokenizer = _make_tokenizer(asked, sides, source.wanted)
    check_vocab_size(data.tokenizer, data.vocab_size, tokenizer)
    check_specials(data.tokenizer, request.specials, tokenizer)
    encode_many = _encoder(tokenizer, source.wanted)
    for name, side in sides.items():
        progress.begin(f"tokenising {name}", len(side.documents))
        encode(side, encode_many, progress.advance)
    samples, fields, gopher = sample_kind(data, request), opened.facts.get("fields"), opened.facts.get("gopher")
    facts = None if contradictory is None else contradictory.facts
    return report(config, sides, tokenizer, request.frame(tokenizer), samples, fields, gopher, facts, progress.begin)


def _passed_over(sides: dict[str, Side], facts: dict[str, Any]) -> None:
    """Records without text are counted where they were read: with the training side, if both are of one source."""
    for name, prefix in (("train", ""), ("validation", "validation_")):
        if name in sides:
            sides[name].blank = facts.get(f"{prefix}blank_records", 0)
            sides[name].bad = facts.get(f"{prefix}skipped_records", 0)


def _make_tokenizer(asked: dict[str, Any], sides: dict[str, Side], wanted: Wanted) -> Tokenizer:
    """As training makes it, but from the sample: of fewer documents than the limit it is the very same one."""
    specials = asked.get("specials", ())
    if asked["kind"] == "byte":
        return ByteTokenizer(specials)
    if asked["kind"] == "char":
        texts = (text for side in sides.values() for document in side.documents for text in wanted.texts_of(document))
        several = any(len(side.documents) > 1 for side in sides.values())
        alphabet: set[str] = set().union(*map(set, texts))
        return CharTokenizer(alphabet, several or wanted.records != "text", specials)
    if asked["kind"] == "bpe":
        return train_bpe(_training_texts(sides["train"], wanted), asked["vocab_size"], specials)
    return load_tokenizer(asked["path"])


def _training_texts(train: Side, wanted: Wanted) -> Iterator[str]:
    for document in train.documents:
        for text in wanted.texts_of(document):
            yield from training_pieces([text])


def _encoder(tokenizer: Tokenizer, wanted: Wanted) -> Callable[[list[str]], list[np.ndarray]]:
    """In a conversation, texts that name a special token become that token."""
    if wanted.records != "chat":
        return tokenizer.encode_many
    specials = special_tokens(tokenizer)
    return lambda texts: [ids for ids, _ in encode_with_specials(texts, tokenizer, specials)]
