"""Checks of the data: tokens that the model knows, texts that are whole, two sides that share nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import nn

from trainbook.check.result import Check, CheckOutcome, failed, passed, skipped
from trainbook.check.shares import LIMITS, by_share, worst
from trainbook.check.subject import CheckSubject
from trainbook.data.linear import words_of
from trainbook.data.prepare.corpus import SYMBOLS
from trainbook.data.report.duplicates import groups, near_duplicates
from trainbook.data.report.gather import SplitReport
from trainbook.data.report.lengths import coverage, encode, padding_waste, recommend
from trainbook.data.sources.chat import special_tokens
from trainbook.data.tokenizers import CharTokenizer, Tokenizer, WordTokenizer, tokenizer_config, train_bpe
from trainbook.knobs.derive import batch_shape, has_windows, max_target_length
from trainbook.loop.build import request_of

BPE_CHARACTERS = 2_000_000  # that a tokenizer is trained on, for its lengths alone
ENOUGH_WORDS = 10  # of a text, to say that another one is nearly the same


def token_ids(subject: CheckSubject) -> CheckOutcome:
    """Of all rows that the model is shown, on both sides."""
    size = subject.data.tokenizer.vocab_size
    streams = {"training": subject.data.train, "validation": subject.data.validation}
    highest, lowest = -1, 0
    for name, samples in streams.items():
        if samples is None or len(samples.tokens) == 0:
            continue
        low, high = int(np.min(samples.tokens)), int(np.max(samples.tokens))
        highest, lowest = max(highest, high), min(lowest, low)
        if low < 0 or high >= size:
            return failed(
                f"{name} token ids range from {low} to {high}, but the vocabulary ends at {size - 1:,}",
                "the text was tokenized with a different tokenizer than the model was built for",
                "Use the model's own tokenizer: omit data.tokenizer, or name the tokenizer that came with the weights.",
                lowest=low,
                highest=high,
                vocab_size=size,
            )
    rows = [part.num_embeddings for part in subject.task.modules() if isinstance(part, nn.Embedding)]
    largest = max(rows, default=None)
    if largest is not None and highest >= largest:
        return failed(
            f"the highest token id is {highest}, but the largest embedding has {largest:,} rows",
            "the model was built for a smaller vocabulary than the tokenizer has",
            "Give the embedding facts.vocab_size rows.",
            highest=highest,
            embedding_rows=largest,
        )
    return passed(f"token ids from 0 to {highest}, within a vocabulary of {size:,}", highest=highest, vocab_size=size)


def token_rates(subject: CheckSubject) -> CheckOutcome:
    """How many tokens are unknown, cut off, or padding, at the lengths that were asked for."""
    asked, side = subject.asked, subject.sample.sides["train"]
    tokenizer = _tokenizer_of_a_run(subject, side)
    # What a template writes of special tokens is one token each.
    specials = special_tokens(tokenizer) if request_of(asked).records == "chat" else None
    side.encoded = encode(side.sample, tokenizer, specials)
    lengths, total = side.lengths, int(side.lengths.sum())
    if total == 0:
        return failed(
            "the texts have no tokens at all", "the tokenizer returns no tokens for them", "Try another data.tokenizer."
        )
    frame = request_of(asked).frame(tokenizer)
    around = len(frame.prefix) + len(frame.suffix) - frame.shift
    unknown = side.encoded.unknown / total
    numbers = {"documents": len(lengths), "unknown_share": unknown}
    told = [f"{len(lengths):,} training texts: {unknown:.2%} unknown tokens"]
    if unknown >= LIMITS["unknown"].remark:
        return by_share(
            "unknown",
            unknown,
            told[0],
            "the tokenizer lacks tokens for this text",
            "Use a tokenizer that covers all characters, such as byte or bpe.",
            "data.tokenizer=bpe",
            **numbers,
        )
    if has_windows(asked):
        told.append("windows need no truncation or padding")
        return passed(", ".join(told), **numbers, cut_share=0.0, padding_share=0.0)
    cut = 1 - coverage(lengths, asked.data.max_seq_length, around)["tokens_kept"]
    targets = None
    if side.encoded.target_lengths:
        around_target = len(frame.target_prefix) + len(frame.target_suffix)
        targets = side.target_lengths + around_target
        longest = max_target_length(asked)
        target_cut = 1 - coverage(side.target_lengths, longest, around_target)["tokens_kept"]
        numbers["target_cut_share"] = target_cut
        told.append(f"{target_cut:.2%} of the target tokens truncated at {longest}")
        if target_cut >= LIMITS["cut"].remark:
            best = recommend(side.target_lengths, around_target)
            return by_share(
                "cut",
                target_cut,
                told[-1],
                "the target texts are longer than the model may generate",
                "Raise data.max_target_length.",
                f"data.max_target_length={best}" if best else None,
                **numbers,
            )
    numbers["cut_share"] = cut
    told.insert(1, f"{cut:.2%} of the tokens truncated at {asked.data.max_seq_length}")
    if cut >= LIMITS["cut"].remark and asked.data.truncation:
        best = recommend(lengths, around)
        return by_share(
            "cut",
            cut,
            told[1],
            "the texts are longer than data.max_seq_length",
            "Raise it, or split the texts.",
            f"data.max_seq_length={best}" if best else None,
            **numbers,
        )
    waste = padding_waste(
        lengths + around,
        asked.data.max_seq_length,
        batch_shape(asked).micro_batch,
        asked.training.seed,
        targets,
        max_target_length(asked),
    )
    share, best_share = waste[asked.data.padding], min(waste["packed"], waste["bucketed"])
    numbers["padding_share"] = share
    told.append(f"{share:.0%} padding")
    if share >= LIMITS["padding"].remark and share - best_share > 0.1 and asked.data.padding == "longest":
        return by_share(
            "padding",
            share,
            f"{share:.0%} of all positions are padding with data.padding=longest, {waste['bucketed']:.0%} with "
            "bucketed",
            "texts of very different lengths share a batch",
            "Group texts of similar length.",
            "data.padding=bucketed",
            **numbers,
        )
    return passed(", ".join(told), **numbers)


def _tokenizer_of_a_run(subject: CheckSubject, side: SplitReport) -> Tokenizer:
    """One that is made of the text is made of more than the rows that the model is shown: it knows every character or
    word of it, and has as many tokens as were asked for, so that texts are not longer in it than in a run."""
    shown, knobs = subject.data.tokenizer, subject.asked.data
    texts = [text for document in side.documents for text in (document.text, document.target) if text]
    if isinstance(shown, CharTokenizer | WordTokenizer) and knobs.tokenizer in SYMBOLS:
        symbols = SYMBOLS[knobs.tokenizer]
        alphabet = {symbol for text in texts for symbol in symbols(text)}
        return type(shown)(alphabet, shown.end_of_text is not None, shown.roles)
    if knobs.tokenizer == "bpe" and knobs.vocab_size != subject.config.data.vocab_size:
        config = tokenizer_config("bpe", knobs.vocab_size, request_of(subject.asked).specials)
        return train_bpe(_within(texts, BPE_CHARACTERS), config["vocab_size"], config.get("specials", ()))
    return shown


def _within(texts: list[str], characters: int) -> Iterator[str]:
    for text in texts:
        if characters <= 0:
            return
        yield text[:characters]
        characters -= len(text)


def overlap(subject: CheckSubject) -> CheckOutcome:
    """By the hash of each text, and by its five-word sequences."""
    sides = subject.sample.sides
    if "validation" not in sides:
        return skipped("there is no validation split, so no run can be evaluated (set data.validation_ratio=0.1)")
    train, validation = sides["train"], sides["validation"]
    copied, num_texts = validation.exact.shared(train.exact, 1), validation.exact.num_texts
    share = copied.texts / max(1, num_texts)
    read = _read(subject)
    if share >= LIMITS["overlap"].remark:
        example = " is also ".join(copied.examples[0])
        is_own = subject.asked.data.validation is not None
        return by_share(
            "overlap",
            share,
            f"{copied.texts:,} of {num_texts:,} validation texts ({share:.1%}) {'is' if copied.texts == 1 else 'are'} "
            f"also in training; {example}{read}",
            "the same texts are in both splits: the validation loss will look too good",
            "Remove them from one split, or hold out a part of the source instead of data.validation."
            if is_own
            else "Keep one copy of each text in the source: groups with a text in common are not always on one side.",
            "data.validation=none data.validation_ratio=0.1" if is_own else None,
            exact=copied.texts,
            share=share,
        )
    ours, theirs = _long_texts(train), _long_texts(validation)
    split = len(ours)
    near = {b - split for a, b, _ in near_duplicates([*ours.values(), *theirs.values()]) if a < split <= b}
    near_share = len(near) / max(1, len(validation.sample))
    if near_share >= LIMITS["near_overlap"].remark:
        return by_share(
            "near_overlap",
            near_share,
            f"{len(near):,} of {len(validation.sample):,} validation texts ({near_share:.1%}) "
            f"{_are(len(near), 'a near-duplicate')} of a training text, such as "
            f"{validation.places[list(theirs)[min(near)]]}{read}",
            "near-duplicates are in both splits: the score on them measures memorization",
            "Remove near-duplicates, or keep related records in one split with data.group_field.",
            near=len(near),
            share=near_share,
            kind="near_overlap",
        )
    return passed(
        f"{copied.texts or 'no'} validation text{'s are' if copied.texts > 1 else ' is'} also in training "
        f"({num_texts:,} and {train.exact.num_texts:,} texts compared by hash); {near_share:.1%} are "
        f"near-duplicates{read}",
        exact=copied.texts,
        near=len(near),
    )


def _are(count: int, one: str) -> str:
    """Of "an exact duplicate", in the number that goes with the count."""
    return f"is {one}" if count == 1 else f"are {one.split(' ', 1)[1]}s"


def duplicates(subject: CheckSubject) -> CheckOutcome:
    train, copies = subject.sample.sides["train"], subject.sample.copies
    share = copies.copies / max(1, train.num_documents)
    texts, compared = list(_long_texts(train).values()), len(train.sample)
    near = len(texts) - len(np.unique(groups(near_duplicates(texts), len(texts))))
    near_share = near / max(1, compared)
    told = (
        f"{copies.copies:,} of {train.num_documents:,} training records ({share:.1%}) "
        f"{_are(copies.copies, 'an exact duplicate')}, {near:,} of {compared:,} ({near_share:.1%}) "
        f"{_are(near, 'a near-duplicate')}{_read(subject)}"
    )
    numbers = {"exact": copies.copies, "share": share, "near": near, "near_share": near_share}
    example = next(iter(copies.examples), None)
    where = f"; {example[0]} is also {example[1]}" if example and share >= LIMITS["duplicates"].remark else ""
    cause = "the same text occurs many times and is weighted accordingly"
    return worst(
        by_share("duplicates", share, told + where, cause, "Keep one copy of each.", **numbers),
        by_share("near_duplicates", near_share, told + where, cause, "Keep one of each.", **numbers),
    )


def _long_texts(side: SplitReport) -> dict[int, str]:
    """By their number in the sample. Short ones are alike by chance, and numbers are no words."""
    return {number: text for number, text in enumerate(side.texts) if len(words_of(text)) >= ENOUGH_WORDS}


def _read(subject: CheckSubject) -> str:
    return "" if subject.sample.is_whole else " (first rows only; --full reads everything)"


CHECKS = (
    Check("token_ids", "every token id has a row in the embedding", token_ids, computes=False),
    Check("token_rates", "few tokens are unknown, truncated or padding", token_rates, computes=False),
    Check("overlap", "the validation and training splits share no text", overlap, computes=False),
    Check("duplicates", "the training texts are distinct", duplicates, computes=False),
)
