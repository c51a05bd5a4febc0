"""What is tokenized, in parts, and what was decided for all of them together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.bounded.arrays import load_array
from trainbook.data import gopher
from trainbook.data.chat import special_tokens
from trainbook.data.fields import FieldSpec
from trainbook.data.folder_cache import digest_of
from trainbook.data.parts import SourcePart
from trainbook.data.records import Document
from trainbook.data.sources import Source
from trainbook.data.split import Split
from trainbook.data.splits import Symbols, characters, judged_texts, parts_of, side_of
from trainbook.data.surveys import Counts
from trainbook.data.tokenizers import load_tokenizer
from trainbook.data.tokenizers.around import template
from trainbook.data.writing import Encoding

TOKENIZER_FOLDER = "tokenizer"
FLAGS_FILE = "validation.npy"  # of each document, whether it is held out
SIDES = ("train", "validation")


# What a tokenizer with an alphabet has one token for: each character, or each word between blanks.
SYMBOLS: dict[str, Symbols] = {"char": characters, "word": str.split}


@dataclass(frozen=True)
class Corpus:
    """Everything that determines the tokens."""

    source: Source
    validation: Source | None
    validation_ratio: float
    tokenizer: dict[str, Any]  # from tokenizer_config, special tokens included
    gopher_filter: bool = False
    begins: bool = False  # each document, with what the tokenizer puts before a text

    @property
    def has_validation(self) -> bool:
        return self.validation is not None or self.validation_ratio > 0

    @property
    def wanted(self) -> FieldSpec:
        return self.source.wanted

    @property
    def symbols(self) -> Symbols | None:
        return SYMBOLS.get(self.tokenizer["kind"])


@dataclass(frozen=True)
class PartOffset:
    """A part with its place among the others."""

    part: SourcePart
    counts: Counts
    first: int  # the number of its first document among those of its source
    of_validation: bool  # of a source of its own


def with_offsets(parts: Sequence[tuple[SourcePart, bool]], counts: Sequence[Counts]) -> list[PartOffset]:
    found: list[PartOffset] = []
    first = {True: 0, False: 0}
    for (part, of_validation), its_counts in zip(parts, counts, strict=True):
        found.append(PartOffset(part, its_counts, first[of_validation], of_validation))
        first[of_validation] += its_counts.documents
    return found


class CorpusPlan:
    """What was decided for all parts, found again in its folder."""

    def __init__(self, corpus: Corpus, folder: Path, facts: dict[str, Any]) -> None:
        self.corpus, self.folder, self.facts = corpus, folder, facts

    def load_encoding(self) -> Encoding:
        tokenizer = load_tokenizer(self.folder / TOKENIZER_FOLDER)
        specials = special_tokens(tokenizer) if self.corpus.wanted.records == "chat" else {}
        names = tuple(self.facts["label_names"])
        begin = template(tokenizer)[0] if self.corpus.begins else ()
        return Encoding(tokenizer, self.facts["dtype"], self.corpus.wanted, names, specials, begin=begin)

    def split_of(self, one: PartOffset) -> Split | str:
        """How the documents of a part are divided, or the side that all of them go to."""
        if one.of_validation:
            return "validation"
        if self.corpus.validation is not None:
            return "train"
        if self.facts["is_cut"]:
            return Split(self.corpus.validation_ratio, None)
        return Split(self.corpus.validation_ratio, self._flags[one.first : one.first + one.counts.documents])

    @cached_property
    def _flags(self) -> np.ndarray:
        return load_array(self.folder / FLAGS_FILE)

    def sides_of(self, one: PartOffset) -> list[str]:
        """The sides that may have something of a part."""
        plan = self.split_of(one)
        if isinstance(plan, str):
            return [plan]
        if plan.is_validation is None:
            return list(SIDES)
        there = (not plan.is_validation.all(), bool(plan.is_validation.any()))
        return [side for side, is_there in zip(SIDES, there, strict=True) if is_there]

    def documents(self, one: PartOffset, side: str, filtered: gopher.Left | None = None) -> Iterator[Document]:
        """What a part has for a side, read anew. What a filter leaves out is told to `filtered`, if anybody asks."""
        plan, source = self.split_of(one), one.part.source
        if isinstance(plan, Split):
            documents = side_of(source, plan, SIDES.index(side))
        else:
            documents = source.documents() if plan == side else iter(())
        if side == "validation" or not self.corpus.gopher_filter:
            return documents
        return (filtered or gopher.Left()).out_of(documents, judged_texts(source))

    def both_sides(self, one: PartOffset) -> Iterator[tuple[int, Document]]:
        """What a part that is divided has for both, each document with the number of its side."""
        plan = self.split_of(one)
        assert isinstance(plan, Split)
        return parts_of(one.part.source, plan)

    def key(self, one: PartOffset, survey_key: str, encoding: Encoding) -> str:
        """Of all that determines what is written of a part."""
        plan = self.split_of(one)
        if not isinstance(plan, str):
            flags = plan.is_validation
            plan = f"cut {plan.ratio}" if flags is None else hashlib.sha256(np.packbits(flags).tobytes()).hexdigest()
        filtered = gopher.VERSION if self.corpus.gopher_filter and not one.of_validation else None
        tokenizer = encoding.tokenizer.fingerprint
        facts = [survey_key, plan, filtered, tokenizer, encoding.dtype, list(encoding.label_names)]
        return digest_of([*facts, list(encoding.begin)] if encoding.begin else facts)
