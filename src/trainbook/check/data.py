"""Checks of the data: tokens that the model knows, texts that are whole, two sides that share nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import nn

from trainbook.check.result import Check, Outcome, failed, passed, skipped
from trainbook.check.subject import Subject
from trainbook.data.chat import encode_with_specials, special_tokens
from trainbook.data.corpus import SYMBOLS
from trainbook.data.linear import words_of
from trainbook.data.report.duplicates import groups, near_duplicates
from trainbook.data.report.gather import Side, encode
from trainbook.data.report.lengths import coverage, recommend
from trainbook.data.report.padding import padding_waste
from trainbook.data.tokenizers import CharTokenizer, Tokenizer, WordTokenizer, tokenizer_config, train_bpe
from trainbook.knobs.derive import batch_shape, has_windows, max_target_length
from trainbook.loop.build import request_of

BPE_CHARACTERS = 2_000_000  # that a tokenizer is trained on, for its lengths alone
MANY_UNKNOWN = 0.01  # of the tokens
MANY_CUT = 0.25  # of the tokens: what is cut off is never learned
MANY_COPIES = 0.05  # of the training documents
MUCH_PADDING = 0.5  # of all positions
ENOUGH_WORDS = 10  # of a text, to say that another one is nearly the same
MANY_EXACT = 0.01  # of the validation texts: short ones are the same by nature now and then
MANY_NEAR = 0.2  # of the validation documents: a few near copies are in every collection


def token_ids(subject: Subject) -> Outcome:
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
                f"the {name} tokens reach from {low} to {high}, but the vocabulary ends at {size - 1:,}",
                "the text was tokenised with another tokenizer than the model is built for",
                "Take the model's own tokenizer: leave data.tokenizer out, or name the one beside the weights.",
                lowest=low,
                highest=high,
                vocab_size=size,
            )
    rows = [part.num_embeddings for part in subject.task.modules() if isinstance(part, nn.Embedding)]
    largest = max(rows, default=None)
    if largest is not None and highest >= largest:
        return failed(
            f"the highest token is {highest}, but the largest embedding has {largest:,} rows",
            "the model was built for a smaller vocabulary than the tokenizer's",
            "Build its embedding with facts.vocab_size rows.",
            highest=highest,
            embedding_rows=largest,
        )
    return passed(f"tokens from 0 to {highest}, below a vocabulary of {size:,}", highest=highest, vocab_size=size)


def token_rates(subject: Subject) -> Outcome:
    """How many tokens are unknown, cut off, or padding, at the lengths that were asked for."""
    asked, side = subject.asked, subject.sample.sides["train"]
    tokenizer = _tokenizer_of_a_run(subject, side)
    if request_of(asked).records == "chat":  # what a template writes of special tokens is one token each
        specials = special_tokens(tokenizer)
        encode(side, lambda texts: [tokens for tokens, _ in encode_with_specials(texts, tokenizer, specials)])
    else:
        encode(side, tokenizer.encode_many)
    lengths, total = side.lengths, int(side.lengths.sum())
    if total == 0:
        return failed("the texts have no tokens at all", "the tokenizer gives nothing", "Try another data.tokenizer.")
    frame = request_of(asked).frame(tokenizer)
    around = len(frame.prefix) + len(frame.suffix) - frame.shift
    unknown_id = tokenizer.special("unknown")
    unknown = sum(int((tokens == unknown_id).sum()) for tokens in side.tokens) / total if unknown_id is not None else 0
    numbers = {"documents": len(lengths), "unknown_share": unknown}
    told = [f"of {len(lengths):,} training texts: {unknown:.2%} unknown tokens"]
    if unknown >= MANY_UNKNOWN:
        return failed(
            told[0],
            "the tokenizer does not know this text",
            "Take a tokenizer that can write everything.",
            "data.tokenizer=bpe",
            **numbers,
        )
    if has_windows(asked):
        told.append("windows cut nothing off and pad nothing")
        return passed(", ".join(told), **numbers, cut_share=0.0, padding_share=0.0)
    cut = 1 - coverage(lengths, asked.data.max_seq_length, around)["tokens_kept"]
    targets = None
    if side.targets:
        around_target = len(frame.target_prefix) + len(frame.target_suffix)
        targets = side.target_lengths + around_target
        longest = max_target_length(asked)
        target_cut = 1 - coverage(side.target_lengths, longest, around_target)["tokens_kept"]
        numbers["target_cut_share"] = target_cut
        told.append(f"{target_cut:.2%} of the target tokens cut off at {longest}")
        if target_cut >= MANY_CUT:
            best = recommend(side.target_lengths, around_target)
            return failed(
                told[-1],
                "the target texts are longer than the model may write",
                "Raise data.max_target_length.",
                f"data.max_target_length={best}" if best else None,
                **numbers,
            )
    numbers["cut_share"] = cut
    told.insert(1, f"{cut:.2%} of the tokens cut off at {asked.data.max_seq_length}")
    if cut >= MANY_CUT and asked.data.truncation:
        best = recommend(lengths, around)
        return failed(
            told[1],
            "the texts are longer than data.max_seq_length",
            "Raise it, or divide the texts.",
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
    if share >= MUCH_PADDING and share - best_share > 0.1 and asked.data.padding == "longest":
        return failed(
            f"{share:.0%} of all positions are padding with longest, {waste['bucketed']:.0%} would be with bucketed",
            "texts of very different lengths share a batch",
            "Put texts of like length together.",
            "data.padding=bucketed",
            **numbers,
        )
    return passed(", ".join(told), **numbers)


def _tokenizer_of_a_run(subject: Subject, side: Side) -> Tokenizer:
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


def overlap(subject: Subject) -> Outcome:
    """By the hash of each text, and by its five-word sequences."""
    sides = subject.sample.sides
    if "validation" not in sides:
        return skipped("nothing is held out: without validation text no run can be judged (data.validation_ratio=0.1)")
    train, validation = sides["train"], sides["validation"]
    copied = [key for key in validation.exact.seen if key in train.exact.seen]
    share = len(copied) / max(1, len(validation.exact.seen))
    read = _read(subject)
    if share >= MANY_EXACT:
        example = f"{validation.exact.seen[copied[0]]} is also {train.exact.seen[copied[0]]}"
        return failed(
            f"{len(copied):,} of {len(validation.exact.seen):,} validation texts ({share:.1%}) are also in training; "
            f"{example}{read}",
            "the same texts are on both sides: the validation loss will look too good",
            "Leave them out on one side, or let a part of the source be held out instead of data.validation.",
            "data.validation=none data.validation_ratio=0.1" if subject.asked.data.validation else None,
            exact=len(copied),
            share=share,
        )
    ours, theirs = _long_texts(train), _long_texts(validation)
    split = len(ours)
    near = {b - split for a, b, _ in near_duplicates([*ours.values(), *theirs.values()]) if a < split <= b}
    near_share = len(near) / max(1, len(validation.documents))
    if near_share >= MANY_NEAR:
        return failed(
            f"{len(near):,} of {len(validation.documents):,} validation texts ({near_share:.1%}) are nearly the same "
            f"as a training text, such as {validation.place(list(theirs)[min(near)])}{read}",
            "nearly the same texts are on both sides: what the model scores there is memory",
            "Remove near copies, or keep related records together with data.group_field.",
            near=len(near),
            share=near_share,
        )
    return passed(
        f"{len(copied) or 'no'} validation text{'s are' if len(copied) > 1 else ' is'} also in training: "
        f"{len(validation.exact.seen):,} against {len(train.exact.seen):,} by hash, and {near_share:.1%} nearly the "
        f"same{read}",
        exact=len(copied),
        near=len(near),
    )


def duplicates(subject: Subject) -> Outcome:
    train, copies = subject.sample.sides["train"], subject.sample.copies
    share = copies.copies / max(1, train.num_documents)
    texts, compared = list(_long_texts(train).values()), len(train.documents)
    near = len(texts) - len(np.unique(groups(near_duplicates(texts), len(texts))))
    near_share = near / max(1, compared)
    told = (
        f"{copies.copies:,} of {train.num_documents:,} training records ({share:.1%}) are exact copies, {near:,} of "
        f"{compared:,} ({near_share:.1%}) near ones{_read(subject)}"
    )
    numbers = {"exact": copies.copies, "share": share, "near": near, "near_share": near_share}
    if share < MANY_COPIES and near_share < MANY_COPIES:
        return passed(told, **numbers)
    example = next(iter(copies.examples), None)
    where = f"; {example[0]} is also {example[1]}" if example else ""
    return failed(
        told + where,
        "the same text is in the data many times, and counts as many times",
        "Keep one of each.",
        **numbers,
    )


def _long_texts(side: Side) -> dict[int, str]:
    """By their number in the sample. Short ones are alike by chance, and numbers are no words."""
    return {number: text for number, text in enumerate(side.texts) if len(words_of(text)) >= ENOUGH_WORDS}


def _read(subject: Subject) -> str:
    return "" if subject.sample.is_whole else " (of the first rows; --full reads all)"


CHECKS = (
    Check("token_ids", "every token has a row in the model", token_ids, computes=False),
    Check("token_rates", "few tokens are unknown, cut off or padding", token_rates, computes=False),
    Check("overlap", "validation and training share no text", overlap, computes=False),
    Check("duplicates", "the training texts are different ones", duplicates, computes=False),
)
