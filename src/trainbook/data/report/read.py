"""From a configuration to both sides of its data as tokens, read as training would read them but kept in no cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from trainbook.data import Request, open_sources, sample_kind
from trainbook.data.chat import special_tokens
from trainbook.data.corpus import SYMBOLS
from trainbook.data.corpus_plan import training_texts
from trainbook.data.fields import FieldSpec
from trainbook.data.report.build import report
from trainbook.data.report.contradictions import contradictions
from trainbook.data.report.encoded import encode
from trainbook.data.report.gather import SplitReport, gather
from trainbook.data.sources.source import BadRecords, Source
from trainbook.data.splits import open_splits, pieces_for
from trainbook.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
    check_specials,
    check_vocab_size,
    load_tokenizer,
    tokenizer_config,
    train_bpe,
)
from trainbook.knobs.config import Config

DEFAULT_LIMIT = 20_000  # documents of each side: enough for every share to be right to about a hundredth


class ReadProgress(Protocol):
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
    config: Config, request: Request, limit: int = DEFAULT_LIMIT, progress: ReadProgress | None = None
) -> dict[str, Any]:
    """Everything that is said of the data of a configuration, read as its task asks."""
    progress = progress or Silent()
    data, seed = config.data, config.training.seed
    asked = tokenizer_config(data.tokenizer, data.vocab_size, request.specials)
    # What cannot be read is a part of the report, whatever training would do about it.
    source, validation = open_sources(data.model_copy(update={"bad_lines": "skip"}), request)
    progress.begin("reading")
    total = 0

    def advance(num_bytes: int) -> None:
        nonlocal total
        total += num_bytes
        progress.advance(num_bytes)

    opened = open_splits(source, validation, data.validation_ratio, data.gopher_filter, advance)

    reasons = {"train": _reasons(source), "validation": _reasons(validation)}
    parts = {"train": (opened.train, source), "validation": (opened.validation, validation or source)}
    sides: dict[str, SplitReport] = {}
    contradictory = contradictions(opened.surveys)
    look_at = {} if contradictory is None else {"look_at": contradictory.look_at}
    progress.begin("counting", total)
    for number, (name, (documents, its_source)) in enumerate(parts.items()):
        if documents is not None:
            sides[name] = gather(documents(), limit, seed + number, its_source.root, progress.advance, **look_at)
    _passed_over(sides, opened.facts)
    for name, side in sides.items():
        side.bad_reasons = reasons[name]

    progress.begin("training the tokenizer")
    tokenizer = _make_tokenizer(asked, sides, source.wanted, progress)
    check_vocab_size(data.tokenizer, data.vocab_size, tokenizer)
    check_specials(data.tokenizer, request.specials, tokenizer)
    specials = special_tokens(tokenizer) if source.wanted.records == "chat" else None
    for name, side in sides.items():
        progress.begin(f"tokenizing {name}", sum(row.num_bytes for row in side.sample.rows))
        side.encoded = encode(side.sample, tokenizer, specials, progress.advance)
    samples, fields, gopher = sample_kind(data, request), opened.facts.get("fields"), opened.facts.get("gopher")
    facts = None if contradictory is None else contradictory.facts
    return report(config, sides, tokenizer, request.frame(tokenizer), samples, fields, gopher, facts, progress.begin)


def _passed_over(sides: dict[str, SplitReport], facts: dict[str, Any]) -> None:
    """Records without text are counted where they were read: with the training side, if both are of one source."""
    for name, prefix in (("train", ""), ("validation", "validation_")):
        if name in sides:
            sides[name].blank = facts.get(f"{prefix}blank_records", 0)
            sides[name].bad = facts.get(f"{prefix}skipped_records", 0)


def _reasons(source: Source | None) -> list[BadRecords]:
    """Why records of the reading that is over could not be read, the most frequent reason first."""
    return [] if source is None else sorted(source.passed.reasons.values(), key=lambda each: -each.records)


def _make_tokenizer(
    asked: dict[str, Any], sides: dict[str, SplitReport], wanted: FieldSpec, progress: ReadProgress
) -> Tokenizer:
    """As training makes it, but from the sample: of fewer documents than the limit it is the very same one."""
    specials = asked.get("specials", ())
    if asked["kind"] == "byte":
        return ByteTokenizer(specials)
    if asked["kind"] in SYMBOLS:
        symbols = SYMBOLS[asked["kind"]]
        alphabet: set[str] = set()
        for side in sides.values():
            for document in side.documents:
                for text in pieces_for(symbols, document, wanted):
                    alphabet.update(symbols(text))
        must_end = any(len(side.sample) > 1 for side in sides.values()) or wanted.records != "text"
        kind = CharTokenizer if asked["kind"] == "char" else WordTokenizer
        return kind(alphabet, must_end or "sentinels" in specials, specials)
    if asked["kind"] == "bpe":
        texts = training_texts(sides["train"].documents, wanted)
        return train_bpe(texts, asked["vocab_size"], specials, progress.advance, lambda: progress.advance(0))
    return load_tokenizer(asked["path"])
