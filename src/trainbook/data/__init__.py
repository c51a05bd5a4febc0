"""From text to batches: sources, tokenizers, a token cache, samples, and the plan of which batch has which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainbook.data.cache import CachedCorpus, prepare
from trainbook.data.datasets import Samples, TokenDocuments, TokenWindows
from trainbook.data.loader import Batch, BatchPlan, eval_batches, samples_in_epochs
from trainbook.data.sources import open_source
from trainbook.data.tokenise import Corpus
from trainbook.data.tokenizers import Tokenizer, check_vocab_size, load_tokenizer, tokenizer_config
from trainbook.knobs.sections.data import Data

__all__ = [
    "Batch",
    "BatchPlan",
    "DataBundle",
    "Samples",
    "TokenDocuments",
    "TokenWindows",
    "Tokenizer",
    "build",
    "eval_batches",
    "load_tokenizer",
    "samples_in_epochs",
]


@dataclass(frozen=True)
class DataBundle:
    train: Samples
    validation: Samples | None
    tokenizer: Tokenizer
    fingerprint: str  # of the tokens and their meaning: two runs with the same one trained on the same data
    summary: dict[str, Any]


def build(data: Data, seed: int) -> DataBundle:
    """Everything that the `data` section asks for. The text is tokenised once and found again in the cache."""
    source = open_source(data.source, data.text_field)
    validation = open_source(data.validation, data.text_field, "data.validation") if data.validation else None
    corpus = Corpus(source, validation, data.validation_ratio, tokenizer_config(data.tokenizer, data.vocab_size))
    cached = prepare(corpus, data.cache_dir)
    check_vocab_size(data.tokenizer, data.vocab_size, cached.tokenizer)

    train = _samples(data, cached, "train", source.root, seed)
    held_out = None
    if corpus.has_validation:
        held_out = _samples(data, cached, "validation", (validation or source).root, seed)
    return DataBundle(train, held_out, cached.tokenizer, cached.fingerprint, _summary(data, cached, train, held_out))


def _samples(data: Data, cached: CachedCorpus, side: str, root: str, seed: int) -> Samples:
    tokens, documents, tokenizer = cached.tokens(side), cached.documents(side, root), cached.tokenizer
    if side == "train":
        name = f"data.source: '{data.source}'"
    elif data.validation:
        name = f"data.validation: '{data.validation}'"
    else:
        name = f"data.validation_ratio={data.validation_ratio}: the validation part of '{data.source}'"
    if data.samples == "documents":
        return TokenDocuments(
            tokens,
            documents,
            data.max_seq_length,
            data.truncation,
            end_of_text=tokenizer.end_of_text,
            tokenizer=tokenizer,
            name=name,
        )
    return TokenWindows(
        tokens,
        data.max_seq_length,
        shuffle=data.shuffle,
        evaluation=side == "validation",
        seed=seed,
        documents=documents,
        tokenizer=tokenizer,
        name=name,
    )


def _summary(data: Data, cached: CachedCorpus, train: Samples, validation: Samples | None) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "source": data.source,
        "tokenizer": data.tokenizer,
        "vocab_size": cached.tokenizer.vocab_size,
        "max_seq_length": data.max_seq_length,
        "samples": data.samples,
        "cache": str(cached.folder),
        "cache_reused": cached.reused,
    }
    for side, samples in (("train", train), ("validation", validation)):
        if samples is not None:
            counts = {"samples": samples.num_samples, "targets": samples.num_tokens}
            summary[side] = {**cached.sides[side], **counts}
    return summary
