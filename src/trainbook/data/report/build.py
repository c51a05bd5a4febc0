"""All that is said of a data set, as one tree of plain values: the answer of `trainbook data --json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from trainbook.data import Request, open_sources, sample_kind
from trainbook.data.prepare.corpus import SYMBOLS, training_texts
from trainbook.data.prepare.filters import RULE
from trainbook.data.prepare.split import open_splits, pieces_for
from trainbook.data.report import duplicates, lengths, memory, shift
from trainbook.data.report.findings import findings
from trainbook.data.report.gather import SplitReport, gather
from trainbook.data.report.giveaways import FEWEST, BestRule, best_rule
from trainbook.data.report.kept import KeptView
from trainbook.data.report.labels import contradictions, describe_labels
from trainbook.data.report.languages import describe_languages
from trainbook.data.report.leftovers import describe_leftovers
from trainbook.data.report.lengths import encode
from trainbook.data.samples.base import EXCERPT_CHARACTERS
from trainbook.data.samples.frame import Frame
from trainbook.data.sources.chat import special_tokens
from trainbook.data.sources.fields import FieldSpec
from trainbook.data.sources.source import BadRecords, Source
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
from trainbook.knobs.derive import batch_shape, max_target_length, task_name
from trainbook.knobs.sections.model_size import BUILT_IN

MAX_EXAMPLES = 10
CAN_PACK = BUILT_IN  # other models cannot be told where in a row a document ends
CURVE = tuple(2**power for power in range(3, 14))


def report(
    config: Config,
    sides: dict[str, SplitReport],
    tokenizer: Tokenizer,
    frame: Frame,
    samples: str,
    fields: dict[str, str] | None = None,
    gopher: dict[str, Any] | None = None,
    contradictions: dict[str, Any] | None = None,
    begin: Callable[[str], None] = lambda stage: None,
    unused_fields: Sequence[str] = (),
) -> dict[str, Any]:
    """Of "train" and perhaps "validation", both already encoded, to be cut into these samples: "windows" or
    "documents". `fields` says which field of a record is what, `gopher` what data.gopher_filter has left out,
    `contradictions` which equal texts have different labels, `unused_fields` which other fields have something to learn
    from, and `begin` is told what is being worked on."""
    train, validation = sides["train"], sides.get("validation")
    seed = config.training.seed
    facts: dict[str, Any] = {
        "source": config.data.source,
        "validation": config.data.validation,
        "task": task_name(config),
        "tokenizer": config.data.tokenizer,
        "vocab_size": tokenizer.vocab_size,
        "fields": fields or {},
        "unused_fields": [*unused_fields],
        "bad_lines": config.data.bad_lines,
        "filters": {"repetition": config.data.repetition_filter, "gopher": gopher},
        "findings": [],
    }
    begin("counting")
    facts["sides"] = {name: _side(side, tokenizer) for name, side in sides.items()}
    facts["giveaway"] = _giveaway(train, seed)
    facts["lengths"] = _lengths(config, train, tokenizer, frame)
    begin("padding")
    facts["padding"] = _padding(config, samples, train, frame, facts["lengths"])
    begin("near duplicates")
    facts["duplicates"] = _duplicates(train, validation)
    facts["contradictions"] = contradictions
    facts["shift"] = None
    if validation is not None and len(train.sample) and len(validation.sample):
        begin("shift between training and validation")
        facts["shift"] = _shift(train, validation, tokenizer.vocab_size, seed)
    facts["findings"] = findings(facts)
    return facts


def _side(side: SplitReport, tokenizer: Tokenizer) -> dict[str, Any]:
    counted = side.lengths
    sample_bytes = sum(row.num_bytes for row in side.sample.rows)
    per_byte = int(counted.sum()) / sample_bytes if sample_bytes else 0.0
    tokens = round(per_byte * side.num_bytes) if side.is_sampled else int(counted.sum())
    places = side.places
    facts: dict[str, Any] = {
        "documents": side.num_documents,
        "sampled_documents": len(side.sample),
        "excerpted_documents": sum(row.is_excerpted for row in side.sample.rows),
        "characters": side.num_characters,
        "bytes": side.num_bytes,
        "tokens": tokens,
        "tokens_estimated": side.is_sampled,
        "tokens_per_byte": per_byte,
        "lengths": lengths.describe(counted),
        "target_lengths": lengths.describe(side.target_lengths) if side.encoded.target_lengths else None,
        "labels": describe_labels(side.labels, side.tags, side.place_of),
        "blank_records": side.blank,
        "bad_records": side.bad,
        "bad_reasons": [asdict(each) for each in side.bad_reasons],
        "empty_documents": int((counted == 0).sum()),
        "unknown_share": _unknown_share(side, tokenizer),
        "replacement_characters": asdict(side.replaced),
        "control_characters": asdict(side.control),
        "carriage_returns": side.carriage_returns,
        "repeats": _repeats(side, tokenizer),
        "languages": describe_languages(side.texts, places),
        "leftovers": describe_leftovers(side.texts, places),
    }
    return facts


def _giveaway(train: SplitReport, seed: int) -> dict[str, Any] | None:
    """A token that gives the class of a text away, if there is one."""
    documents = [document for document in train.documents if isinstance(document.label, str)]
    if len(documents) < FEWEST:
        return None
    found = best_rule([document.text for document in documents], [str(each.label) for each in documents], seed)
    return asdict(found) if isinstance(found, BestRule) and found.gives_away else None


def _unknown_share(side: SplitReport, tokenizer: Tokenizer) -> float | None:
    """Of all tokens; None where the tokenizer knows no such token, because it can write anything."""
    unknown = tokenizer.special("unknown")
    total = int(side.lengths.sum())
    if unknown is None or total == 0:
        return None
    return side.encoded.unknown / total


def _repeats(side: SplitReport, tokenizer: Tokenizer) -> dict[str, Any]:
    found, places = side.encoded.repeats, side.places
    longest = sorted(found, key=lambda each: -each[0].repetitions * each[0].period)[:MAX_EXAMPLES]
    examples = [
        {
            "document": repeat.document,
            "place": places[repeat.document],
            "position": repeat.position,
            "period": repeat.period,
            "repetitions": repeat.repetitions,
            "excerpt": tokenizer.decode(tokens)[:EXCERPT_CHARACTERS],
        }
        for repeat, tokens in longest
    ]
    return {"rule": RULE, "documents": len(found), "examples": examples}


def _lengths(config: Config, train: SplitReport, tokenizer: Tokenizer, frame: Frame) -> dict[str, Any]:
    around = len(frame.prefix) + len(frame.suffix) - frame.shift
    counted, configured = train.lengths, config.data.max_seq_length
    recommended = lengths.recommend(counted, around)
    target_length = max_target_length(config)
    rows = []
    for length in sorted({*lengths.SHOWN_LENGTHS, recommended or configured, configured}):
        size = memory.sequence_bytes(config, length, tokenizer.vocab_size, target_length)
        rows.append({"length": length, **lengths.coverage(counted, length, around), "bytes_per_sequence": size})
    facts = {
        "rule": lengths.RULE,
        "around": around,  # positions that the task takes for itself, less the token that is not read
        "configured": configured,
        "recommended": recommended,
        "memory": memory.ASSUMES,
        "by_length": rows,
        "curve": [{"length": length, **lengths.coverage(counted, length, around)} for length in CURVE],
        "targets": None,
    }
    if train.encoded.target_lengths:
        around = len(frame.target_prefix) + len(frame.target_suffix)
        facts["targets"] = {
            "configured": target_length,
            "recommended": lengths.recommend(train.target_lengths, around),
            **lengths.coverage(train.target_lengths, target_length, around),
        }
    return facts


def _padding(
    config: Config, samples: str, train: SplitReport, frame: Frame, length_facts: dict[str, Any]
) -> dict[str, Any]:
    data, shape = config.data, batch_shape(config)
    micro_batch = shape.micro_batch
    positions, targets = train.lengths + length_facts["around"], None
    if train.encoded.target_lengths:
        targets = train.target_lengths + len(frame.target_prefix) + len(frame.target_suffix)

    def waste_at(length: int) -> dict[str, float]:
        seed, most = config.training.seed, max_target_length(config)
        return lengths.padding_waste(positions, length, micro_batch, seed, targets, most)

    length = length_facts["recommended"] or data.max_seq_length
    waste = waste_at(length)
    best = lengths.best_strategy(waste, config.model.type in CAN_PACK) if samples == "documents" else "windows"
    return {
        "samples": samples,
        "configured": data.padding if samples == "documents" else "windows",
        "recommended": best,
        "length": length,
        "micro_batch": micro_batch,
        "global_batch": shape.global_batch,
        "batch_is_cut": bool(config.batch.per_device_train_batch_size or config.batch.gradient_accumulation_steps),
        "at_recommended_length": waste,
        "at_configured_length": waste_at(data.max_seq_length),
    }


def _duplicates(train: SplitReport, validation: SplitReport | None) -> dict[str, Any]:
    sides = [train] if validation is None else [train, validation]
    texts = KeptView([side.sample for side in sides], lambda seen: seen.text)
    pairs = duplicates.near_duplicates(texts)
    places = [place for side in sides for place in side.places]
    split = len(train.sample)

    def examples(chosen: list[tuple[int, int, float]]) -> list[dict[str, Any]]:
        shown = []
        for a, b, jaccard in chosen[:MAX_EXAMPLES]:
            one, other = duplicates.where_they_differ(texts[a], texts[b])
            pair = {"one": places[a], "other": places[b], "jaccard": jaccard}
            shown.append(pair | {"similarity": duplicates.similarity(jaccard), "one_text": one, "other_text": other})
        return shown

    documents = train.documents
    numbers = [documents[number].label for number in range(split)] if train.measured.num_texts else None
    within = [pair for pair in pairs if pair[1] < split and (numbers is None or numbers[pair[0]] == numbers[pair[1]])]
    facts: dict[str, Any] = {
        "method": duplicates.METHOD,
        "train": {
            "exact": train.copies.copies,
            "exact_examples": [{"one": first, "other": copy} for copy, first in train.copies.examples],
            "same_text": train.exact.copies,
            "near": split - len(np.unique(duplicates.groups(within, split))),
            "near_examples": examples(within),
        },
        "validation": None,
        "between": None,
    }
    if validation is not None:
        inside = [(a - split, b - split, likeness) for a, b, likeness in pairs if a >= split]
        across = [pair for pair in pairs if pair[0] < split <= pair[1]]
        near_training = {b for _, b, _ in across}
        copied = validation.exact.shared(train.exact, MAX_EXAMPLES)
        facts["validation"] = {
            "exact": validation.copies.copies,
            "near": len(validation.sample) - len(np.unique(duplicates.groups(inside, len(validation.sample)))),
        }
        facts["between"] = {
            "exact": copied.documents,
            "exact_share": copied.documents / max(validation.num_documents, 1),
            "exact_examples": [{"one": one, "other": other} for other, one in copied.examples],
            "near": len(near_training),
            "near_share": len(near_training) / max(len(validation.sample), 1),
            "near_examples": examples(across),
        }
    return facts


def _shift(train: SplitReport, validation: SplitReport, vocab_size: int, seed: int) -> dict[str, Any]:
    sides = (train, validation)
    chosen = [_for_the_classifier(side, seed, number) for number, side in enumerate(sides)]
    domain = shift.domain_shift(chosen[0][0], chosen[1][0], seed)
    cuts = [cut for _, cut in chosen if cut is not None]
    domain["cut_at_characters"] = min(cuts) if cuts else None
    common = lengths.edges(np.concatenate([train.lengths, validation.lengths]))
    counted = [(side.encoded.counted_documents, side.sample.rows) for side in sides]
    units = [rows[number].unit for numbers, rows in counted for number in numbers]
    counts = [side.encoded.counts(vocab_size) for side in sides]
    facts = {
        "length": shift.length_shift(
            train.lengths, validation.lengths, seed, [row.unit for side in sides for row in side.sample.rows]
        ),
        "tokens": {
            **shift.token_shift(counts[0], counts[1], seed, units),
            "documents": [matrix.shape[0] for matrix in counts],
            "unseen_words": shift.unseen_words(train.words_of_all, validation.words_of_all),
        },
        "labels": shift.label_shift(
            train.labels,
            validation.labels,
            train.tags,
            validation.tags,
            seed,
            [*train.label_units, *validation.label_units],
        ),
        "domain": {**domain, "verdict": shift.verdict(domain["auc"], domain["p_value"], domain["reason"])},
        "histograms": {
            "train": lengths.histogram(train.lengths, common),
            "validation": lengths.histogram(validation.lengths, common),
        },
    }
    shift.correct(facts)
    return facts


def _for_the_classifier(side: SplitReport, seed: int, number: int) -> tuple[list[str], int | None]:
    """Texts of different units, and at how many characters they are cut."""
    rows = side.sample.rows
    of_each = shift.one_of_each([row.unit for row in rows])
    chosen = [of_each[index] for index in shift.drawn(len(of_each), seed, number)]
    cut = shift.longest_within([rows[index].text_characters for index in chosen], shift.MAX_CHARACTERS)
    return [side.sample[index].text[:cut] for index in chosen], cut


# From a configuration to both sides of its data as tokens, read as training would read them but kept in no cache.


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
    unused = opened.facts.get("unused_fields", ())
    facts = None if contradictory is None else contradictory.facts
    return report(
        config, sides, tokenizer, request.frame(tokenizer), samples, fields, gopher, facts, progress.begin, unused
    )


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
