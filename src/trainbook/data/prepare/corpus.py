"""What is tokenized, in parts, and what was decided for all of them together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.bounded.arrays import load_array
from trainbook.data.prepare import filters
from trainbook.data.prepare.folder_cache import SourcePart, digest_of
from trainbook.data.prepare.split import (
    Split,
    Survey,
    Symbols,
    characters,
    divided,
    facts_of,
    judged_texts,
    must_be_for_texts,
    parts_of,
    side_of,
)
from trainbook.data.prepare.surveys import Counts
from trainbook.data.prepare.workers import DataWorkers, stage
from trainbook.data.prepare.writing import MARKS_TYPE, Encoding
from trainbook.data.sources import Source
from trainbook.data.sources.chat import check_prompts, special_tokens
from trainbook.data.sources.fields import FieldSpec
from trainbook.data.sources.long import LongDocument
from trainbook.data.sources.records import Document
from trainbook.data.sources.values import in_order
from trainbook.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
    train_bpe,
)
from trainbook.data.tokenizers.around import template
from trainbook.data.tokenizers.training import DistinctWords, training_pieces
from trainbook.errors import DataError

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

    def documents(self, one: PartOffset, side: str, filtered: filters.Left | None = None) -> Iterator[Document]:
        """What a part has for a side, read anew. What a filter leaves out is told to `filtered`, if anybody asks."""
        plan, source = self.split_of(one), one.part.source
        if isinstance(plan, Split):
            documents = side_of(source, plan, SIDES.index(side))
        else:
            documents = source.documents() if plan == side else iter(())
        if side == "validation" or not self.corpus.gopher_filter:
            return documents
        return (filtered or filters.Left()).out_of(documents, judged_texts(source))

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
        filtered = filters.VERSION if self.corpus.gopher_filter and not one.of_validation else None
        tokenizer = encoding.tokenizer.fingerprint
        facts = [survey_key, plan, filtered, tokenizer, encoding.dtype, list(encoding.label_names)]
        return digest_of([*facts, list(encoding.begin)] if encoding.begin else facts)


# What is decided for all parts before any of them is tokenized: what is held out, the classes, the tokenizer.


# A tokenizer is trained on all of the text up to this many characters, and on a sample of it beyond.
BPE_CHARACTERS = 1 << 27


def decide(
    corpus: Corpus,
    placed: Sequence[PartOffset],
    seen: Survey,
    seen_validation: Survey | None,
    folder: Path,
    workers: DataWorkers,
) -> dict[str, Any]:
    """Write the tokenizer and which documents are held out; the answer is all else that every part has to know."""
    counts = sum((one.counts for one in placed if not one.of_validation), Counts())
    facts = facts_of(corpus.source, counts.documents, counts.passed)
    facts |= _empty(counts)
    if corpus.validation is not None:
        its_counts = sum((one.counts for one in placed if one.of_validation), Counts())
        its_facts = facts_of(corpus.validation, its_counts.documents, its_counts.passed) | _empty(its_counts)
        facts |= {f"validation_{name}": fact for name, fact in its_facts.items()}
    plan = Split(0, None)
    if corpus.validation is None:
        plan = divided(seen, corpus.source, corpus.validation_ratio, counts.passed)
    if corpus.validation is None and plan.is_validation is not None:
        np.save(folder / FLAGS_FILE, plan.is_validation, allow_pickle=False)
    is_cut = corpus.validation is None and plan.is_validation is None
    names = _label_names(corpus, seen.classes(None if plan.is_validation is None else ~plan.is_validation))
    decided = CorpusPlan(corpus, folder, {"is_cut": is_cut, "label_names": list(names)})
    if corpus.gopher_filter:
        must_be_for_texts(corpus.source)
    surveys = [seen] if seen_validation is None else [seen, seen_validation]
    tokenizer = _make_tokenizer(corpus, surveys, decided, placed, facts, workers)
    tokenizer.save(folder / TOKENIZER_FOLDER)
    if corpus.wanted.chat is not None:
        trained = (document for one in placed for document in decided.documents(one, "train"))
        check_prompts(trained, corpus.wanted.chat, tokenizer, special_tokens(tokenizer))
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    also = {} if seen_validation is None else {"also_in_train": seen_validation.num_also_in(seen)}
    return {"dtype": dtype, "label_names": list(names), "is_cut": is_cut, "read": facts, **also}


def _empty(counts: Counts) -> dict[str, Any]:
    return {"empty_files": {"count": counts.empty, "such_as": list(counts.empty_named)}} if counts.empty else {}


def _label_names(corpus: Corpus, names: set[str]) -> tuple[str, ...]:
    """The classes of the training side."""
    wanted = corpus.wanted
    if wanted.records not in ("labelled", "tagged") or wanted.labels == "number":
        return ()
    least = 1 if wanted.labels == "classes" else 2
    if len(names) < least:
        has = f"has only {next(iter(names))!r}" if names else "has none"
        raise DataError(
            f"{corpus.source.knob}: the training split of '{corpus.source.name}' must have at least {least} "
            f"class{'es' if least > 1 else ''}, but {has}."
        )
    if wanted.records == "tagged" and len(names) > np.iinfo(MARKS_TYPE).max:
        raise DataError(f"{corpus.source.knob}: '{corpus.source.name}' has {len(names)} tags, more than are supported.")
    return in_order(names)


def _make_tokenizer(
    corpus: Corpus,
    surveys: Sequence[Survey],
    decided: CorpusPlan,
    placed: Sequence[PartOffset],
    facts: dict[str, Any],
    workers: DataWorkers,
) -> Tokenizer:
    config = corpus.tokenizer
    specials = config.get("specials", ())
    if config["kind"] == "byte":
        return ByteTokenizer(specials)
    if config["kind"] in SYMBOLS:
        alphabet = frozenset().union(*(seen.alphabet for seen in surveys))
        # A conversation or a target must end, that of cut-out spans too; of texts, only several need something between.
        several = any(seen.num_documents > 1 for seen in surveys)
        must_end = corpus.wanted.records != "text" or "sentinels" in specials
        kind = CharTokenizer if config["kind"] == "char" else WordTokenizer
        return kind(alphabet, several or must_end, specials)
    if config["kind"] == "bpe":
        return _train_bpe(corpus, decided, [one for one in placed if not one.of_validation], facts, workers)
    return load_tokenizer(config["path"])


def _train_bpe(
    corpus: Corpus, decided: CorpusPlan, placed: Sequence[PartOffset], facts: dict[str, Any], workers: DataWorkers
) -> Tokenizer:
    config = corpus.tokenizer
    chosen = _to_learn_from(placed)
    total = sum(one.counts.characters for one in placed)
    num_bytes = sum(one.part.num_bytes for one in chosen)
    words = DistinctWords()
    with stage(
        "training the BPE tokenizer", round(num_bytes * min(BPE_CHARACTERS / total, 1)), workers.rank == 0
    ) as bar:
        documents = (document for one in chosen for document in decided.documents(one, "train"))

        def advance(num_bytes: int) -> None:
            workers.advance()
            bar.advance(num_bytes)

        def merging() -> None:
            workers.advance()
            sample = f"the first {words.num_characters:,} characters, which have very many different words"
            bar.note(f"merging pairs of {sample}" if words.is_full else "merging pairs")

        texts, specials = training_texts(documents, corpus.wanted), config.get("specials", ())
        tokenizer = train_bpe(texts, config["vocab_size"], specials, advance, merging, words)
    if words.is_full or total > BPE_CHARACTERS:
        used = words.num_characters if words.is_full else BPE_CHARACTERS
        facts["tokenizer_sample"] = {"characters": used, "of": total}
    return tokenizer


def _to_learn_from(placed: Sequence[PartOffset]) -> list[PartOffset]:
    """All parts, or of many some that are chosen by their names: those are the same ones when others come or go."""
    if sum(one.counts.characters for one in placed) <= BPE_CHARACTERS:
        return list(placed)
    by_chance = sorted(range(len(placed)), key=lambda number: _by_name(placed[number]))
    chosen: list[int] = []
    for number in by_chance:
        if sum(placed[other].counts.characters for other in chosen) >= BPE_CHARACTERS:
            break
        chosen.append(number)
    return [placed[number] for number in sorted(chosen)]


def _by_name(one: PartOffset) -> str:
    contents = one.part.contents
    return digest_of([facts[0] for facts in contents] if isinstance(contents, list) else contents)


def training_texts(documents: Iterable[Document], wanted: FieldSpec) -> Iterator[str]:
    """What a BPE is trained on, up to its limit."""
    left = BPE_CHARACTERS
    for document in documents:
        is_long = isinstance(document, LongDocument)
        for text in [document.chunks()] if is_long else ([text] for text in wanted.texts_of(document)):
            for piece in training_pieces(text):
                yield piece
                left -= len(piece)
                if left <= 0:
                    return
