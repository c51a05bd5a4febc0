"""From sources to files of tokens: split, train the tokenizer where there is something to train, encode, write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.data.chat import check_prompts, special_tokens
from trainbook.data.fields import Wanted
from trainbook.data.sides import Documents, Sides, open_sides
from trainbook.data.sources import Source
from trainbook.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
    train_bpe,
)
from trainbook.data.values import in_order
from trainbook.data.writing import MARKS_TYPE, PIECE_CHARACTERS, Encoding, pieces, write_side
from trainbook.errors import DataError

TOKENIZER_FOLDER = "tokenizer"


@dataclass(frozen=True)
class Corpus:
    """Everything that determines the tokens."""

    source: Source
    validation: Source | None
    validation_ratio: float
    tokenizer: dict[str, Any]  # from tokenizer_config, special tokens included
    gopher_filter: bool = False

    @property
    def has_validation(self) -> bool:
        return self.validation is not None or self.validation_ratio > 0

    @property
    def wanted(self) -> Wanted:
        return self.source.wanted


# What a tokenizer with an alphabet has one token for: each character, or each word between blanks.
SYMBOLS: dict[str, Callable[[str], Iterable[str]]] = {"char": lambda text: text, "word": str.split}


def tokenise(corpus: Corpus, folder: Path) -> dict[str, Any]:
    """Write the tokenizer and both sides into the folder; the answer is what an index should say of them."""
    symbols = SYMBOLS.get(corpus.tokenizer["kind"])
    sides = open_sides(
        corpus.source, corpus.validation, corpus.validation_ratio, symbols, gopher_filter=corpus.gopher_filter
    )
    label_names = _label_names(corpus, sides)
    tokenizer = _make_tokenizer(corpus, sides)
    tokenizer.save(folder / TOKENIZER_FOLDER)
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    specials = special_tokens(tokenizer) if corpus.wanted.records == "chat" else {}
    if corpus.wanted.chat is not None:
        check_prompts(sides.train(), corpus.wanted.chat, tokenizer, specials)
    encoding = Encoding(tokenizer, dtype, corpus.wanted, label_names, specials)
    facts: dict[str, Any] = {"dtype": dtype, "label_names": list(label_names), "read": sides.facts, "sides": {}}
    parts: dict[str, tuple[Documents | None, Source]] = {
        "train": (sides.train, corpus.source),
        "validation": (sides.validation, corpus.validation or corpus.source),
    }
    with _progress(sum(seen.num_characters for seen in sides.surveys)) as advance:
        for name, (documents, source) in parts.items():
            if documents is not None:
                (folder / name).mkdir()
                if name == "validation" and corpus.validation is None:
                    encoding = replace(encoding, validation_ratio=corpus.validation_ratio)
                facts["sides"][name] = write_side(folder / name, documents(), encoding, advance, source.root)
    if sides.seen_validation:
        known = set(sides.seen.digests)
        facts["sides"]["validation"]["also_in_train"] = sum(digest in known for digest in sides.seen_validation.digests)
    return facts


def _label_names(corpus: Corpus, sides: Sides) -> tuple[str, ...]:
    """The classes of the training side."""
    wanted = corpus.wanted
    if wanted.records not in ("labelled", "tagged") or wanted.labels == "number":
        return ()
    names = sides.classes
    least = 1 if wanted.labels == "classes" else 2
    if len(names) < least:
        has = f"has only {next(iter(names))!r}" if names else "has none"
        raise DataError(
            f"{corpus.source.knob}: the training part of '{corpus.source.name}' must have at least {least} "
            f"class{'es' if least > 1 else ''}, but {has}."
        )
    if wanted.records == "tagged" and len(names) > np.iinfo(MARKS_TYPE).max:
        raise DataError(f"{corpus.source.knob}: '{corpus.source.name}' has {len(names)} tags, more than can be kept.")
    return in_order(names)


def _make_tokenizer(corpus: Corpus, sides: Sides) -> Tokenizer:
    config = corpus.tokenizer
    specials = config.get("specials", ())
    if config["kind"] == "byte":
        return ByteTokenizer(specials)
    if config["kind"] in SYMBOLS:
        alphabet = frozenset().union(*(seen.alphabet for seen in sides.surveys))
        # A conversation or a target must end, that of cut-out spans too; of texts, only several need something between.
        several = any(seen.num_documents > 1 for seen in sides.surveys)
        must_end = corpus.wanted.records != "text" or "sentinels" in specials
        kind = CharTokenizer if config["kind"] == "char" else WordTokenizer
        return kind(alphabet, several or must_end, specials)
    if config["kind"] == "bpe":
        return train_bpe(_training_texts(corpus, sides), config["vocab_size"], specials)
    return load_tokenizer(config["path"])


def _training_texts(corpus: Corpus, sides: Sides) -> Iterator[str]:
    for document in sides.train():
        for text in corpus.wanted.texts_of(document):
            yield from pieces(text, PIECE_CHARACTERS)


@contextmanager
def _progress(total_characters: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda characters: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tokenising", total=total_characters)
        yield lambda characters: bar.advance(task, characters)
