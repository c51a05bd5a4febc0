"""From text to batches: sources, tokenizers, a token cache, samples, and the plan of which batch has which."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.data.batches.filling import Batch, Ragged
from trainbook.data.batches.plan import BatchPlan, eval_batches, samples_in_epochs
from trainbook.data.prepare.cache import prepare_corpus
from trainbook.data.prepare.cached import CachedCorpus
from trainbook.data.prepare.corpus import Corpus
from trainbook.data.prepare.split import Splits, open_splits
from trainbook.data.prepare.workers import SINGLE_WORKER, DataWorkers
from trainbook.data.samples import quarantine
from trainbook.data.samples.datasets import Samples, TokenDocuments, TokenWindows
from trainbook.data.samples.frame import Frame, Request
from trainbook.data.sources import Source, open_source
from trainbook.data.sources.chat import open_chat
from trainbook.data.sources.fields import FieldSpec
from trainbook.data.sources.files import records_below
from trainbook.data.sources.opening import BUILTIN_PREFIX
from trainbook.data.sources.reader import FileReader
from trainbook.data.sources.records import Document, LabelKind, RecordKind
from trainbook.data.tokenizers import Tokenizer, check_specials, check_vocab_size, load_tokenizer, tokenizer_config
from trainbook.errors import DataError
from trainbook.knobs.sections.data import DataKnobs

__all__ = [
    "Batch",
    "BatchPlan",
    "DataBundle",
    "Document",
    "Frame",
    "LabelKind",
    "Ragged",
    "RecordKind",
    "Request",
    "Samples",
    "TokenDocuments",
    "TokenWindows",
    "Tokenizer",
    "build",
    "eval_batches",
    "load_tokenizer",
    "open_records",
    "open_sources",
    "sample_kind",
    "samples_in_epochs",
]


@dataclass(frozen=True)
class DataBundle:
    train: Samples
    validation: Samples | None
    tokenizer: Tokenizer
    fingerprint: str  # of the tokens, their meaning and what is left out: runs with the same one train on the same data
    summary: dict[str, Any]
    label_names: tuple[str, ...] = ()  # the class of each number, where there are classes
    bytes_per_token: float = 1.0  # of the text that is predicted, in validation where there is some
    chat_template: str | None = None  # how conversations were written, as a Jinja template
    train_fingerprint: str = ""  # of the training tokens alone: what the id of a sample means
    kept_out: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # ids of samples, by a quarantine


def build(data: DataKnobs, seed: int, request: Request, workers: DataWorkers = SINGLE_WORKER) -> DataBundle:
    """Everything that the `data` section asks for. The text is tokenized once and found again in the cache; several
    processes share the work, and each gets the whole."""
    config = tokenizer_config(data.tokenizer, data.vocab_size, request.specials)
    source, validation = open_sources(data, request)
    # Only a tokenizer that was brought puts something before a text by itself.
    begins = request.begins and config["kind"] == "file" and sample_kind(data, request) == "windows"
    corpus = Corpus(source, validation, data.validation_ratio, config, data.gopher_filter, begins)
    cached = prepare_corpus(corpus, data.cache_dir, workers)
    check_vocab_size(data.tokenizer, data.vocab_size, cached.tokenizer)
    check_specials(data.tokenizer, request.specials, cached.tokenizer)

    frame = request.frame(cached.tokenizer)
    train = _samples(data, request, cached, "train", source.root, frame, seed)
    held_out = None
    if corpus.has_validation:
        held_out = _samples(data, request, cached, "validation", (validation or source).root, frame, seed)
    kept_out, its_notices = _kept_out(data, train, cached)
    summary = _summary(data, request, cached, train, held_out)
    skipped = (_many_skipped(cached.index["read"], prefix) for prefix in ("", "validation_"))
    summary["warnings"] = [told for told in skipped if told]
    summary["left_out"] = _left_out(data, cached, train, len(kept_out))
    summary["notices"] = _notices(data, source, validation) + _told(cached, source, validation) + its_notices
    if "pad" in request.specials and cached.tokenizer.special("pad") is None:
        end = cached.tokenizer.special_names.get(cached.tokenizer.padding)
        summary["notices"].append(
            f"The tokenizer has no padding token: its end-of-text token {end!r} is used for padding, and masked."
        )
    return DataBundle(
        train,
        held_out,
        cached.tokenizer,
        _fingerprint(cached, train),
        summary,
        cached.label_names,
        _bytes_per_token(cached, held_out or train),
        corpus.wanted.chat.template if corpus.wanted.chat else None,
        cached.train_fingerprint,
        kept_out,
    )


def open_sources(data: DataKnobs, request: Request) -> tuple[Source, Source | None]:
    """The sources that the `data` section names, to be read as a task asks. Of two, the first records are read: what
    both lack is told in one message. Otherwise nothing is read yet."""
    chat = None
    if request.records == "chat":
        config = tokenizer_config(data.tokenizer, data.vocab_size, request.specials)
        chat = open_chat(data.chat_template, data.mask_prompt, config)
    wanted = FieldSpec(
        request.records,
        request.labels,
        data.text_field,
        data.label_field,
        data.target_field,
        data.group_field,
        data.bad_lines,
        chat,
    )
    source = open_source(data.source, wanted)
    if not data.validation:
        return source, None
    validation = open_source(data.validation, wanted, "data.validation", source)
    _must_have_fields(source, validation)
    return source, validation


def _must_have_fields(source: Source, validation: Source) -> None:
    problem = _missing_in(source)
    problems = [problem, _missing_in(validation if problem is None else replace(validation, like=None))]
    if any(problems):
        raise DataError("\n".join(problem for problem in problems if problem))


def _missing_in(source: Source) -> str | None:
    try:
        _ = source.fields
    except DataError as error:
        return str(error)
    return None


def open_records(data: DataKnobs, request: Request) -> Splits:
    """The documents that `build` would tokenize, divided as it divides them.

    `train` and `validation` of the answer are functions: each call gives an iterator that reads the documents anew
    (`validation` is None where nothing is held out). `facts["fields"]` says which field was taken for what.
    """
    source, validation = open_sources(data, request)
    return open_splits(source, validation, data.validation_ratio, gopher_filter=data.gopher_filter)


def _kept_out(data: DataKnobs, train: Samples, cached: CachedCorpus) -> tuple[np.ndarray, list[str]]:
    """The samples that another run's quarantine keeps out of this one too, and what there is to say of it."""
    if data.quarantine is None:
        return np.empty(0, dtype=np.int64), []
    path, entries = quarantine.open_quarantine(data.quarantine)
    if not entries:
        return np.empty(0, dtype=np.int64), [f"data.quarantine has no effect: {data.quarantine} excluded no sample."]
    found = quarantine.find(entries, train, cached.train_fingerprint, path)
    notices = []
    if found.missing:
        text = f"data.quarantine: {len(found.missing):,} of {len(entries):,} samples in {path} are not in this data"
        notices.append(f"{text}, such as {found.missing[0]}.")
    return found.ids, notices


def _left_out(data: DataKnobs, cached: CachedCorpus, train: Samples, kept_out: int) -> list[str]:
    """What of the training side is not trained on because the user said so, a sentence for each knob."""
    told = []
    if data.repetition_filter:
        of_epoch = " of the first epoch" if train.kind == "windows" else ""
        among = train.num_samples + (train.num_filtered if train.kind == "documents" else 0)
        told.append(f"by data.repetition_filter: {train.num_filtered:,} of {among:,} {train.kind}{of_epoch}")
    if gopher := cached.index["read"].get("gopher"):
        most = sorted(gopher["rules"].items(), key=lambda rule: -rule[1])
        rules = f" ({', '.join(f'{rule}: {count:,}' for rule, count in most[:3])})" if most else ""
        told.append(f"by data.gopher_filter: {gopher['left_out']:,} of {gopher['of']:,} documents{rules}")
    if kept_out:
        told.append(f"by data.quarantine: {kept_out:,} {train.kind} that {data.quarantine} names")
    return told


MANY_SKIPPED = 0.02  # of all records: more may be a kind of text that is missing


def _many_skipped(read: dict[str, Any], prefix: str) -> str:
    """Empty where few of the records were skipped."""
    skipped, total = read.get(f"{prefix}skipped_records", 0), read.get(f"{prefix}skipped_of", 0)
    if not total or skipped <= MANY_SKIPPED * total:
        return ""
    of = " of data.validation" if prefix else ""
    such_as = read.get(f"{prefix}skipped_such_as", "")
    reason = f", such as {such_as}" if such_as else ""
    return f"{skipped / total:.1%} of the records{of} ({skipped:,} of {total:,}) cannot be read{reason}"


def _fingerprint(cached: CachedCorpus, train: Samples) -> str:
    """What a filter leaves out of the tokens is no longer what a run without it trained on."""
    if len(train.filtered) == 0:
        return cached.fingerprint
    ranges = np.stack([train.filtered.begins, train.filtered.ends]).astype("<i8").tobytes()
    return hashlib.sha256(f"{cached.fingerprint} {train.kind} ".encode() + ranges).hexdigest()


def _notices(data: DataKnobs, source: Source, validation: Source | None) -> list[str]:
    """Knobs that do nothing with this data."""
    sources = [each for each in (source, validation) if each is not None]
    if any(each.reader.has_fields for each in sources):
        return []
    named = [name for name in ("text_field", "label_field", "target_field", "group_field") if getattr(data, name)]
    return [f"data.{name} has no effect: {data.source} is plain text, which has no fields." for name in named]


def _told(cached: CachedCorpus, source: Source, validation: Source | None) -> list[str]:
    """What is odd about the files, and yet allowed."""
    told = []
    for each, prefix in ((source, ""), (validation, "validation_")):
        if each is None:
            continue
        reader = each.reader
        folder = Path(each.name).expanduser()
        if isinstance(reader, FileReader) and folder.is_dir() and (records := records_below(folder)):
            runs = "1 run" if len(records) == 1 else f"{len(records):,} runs"
            told.append(f"{each.knob}: '{each.name}': the folder of {runs} is not read, such as {records[0]}.")
        if isinstance(reader, FileReader) and len(set(reader.formats)) > 1:
            kinds = ", ".join(f"{count:,} *{kind}" for kind, count in reader.kinds.items())
            told.append(
                f"{each.knob}: '{each.name}' has files of several kinds, each read according to its suffix: {kinds}."
            )
        if (empty := cached.index["read"].get(f"{prefix}empty_files")) and not each.name.startswith(BUILTIN_PREFIX):
            among = f"{empty['count']:,} of its {len(reader.files):,} files" if isinstance(reader, FileReader) else ""
            told.append(f"{each.knob}: '{each.name}': {among} have no text, such as {empty['such_as'][0]}.")
    if sample := cached.index["read"].get("tokenizer_sample"):
        share = f"{sample['characters']:,} of {sample['of']:,} characters"
        told.append(f"data.tokenizer: trained on a sample of the text: {share}.")
    return told


def _samples(
    data: DataKnobs, request: Request, cached: CachedCorpus, side: str, root: str, frame: Frame, seed: int
) -> Samples:
    tokens, documents, tokenizer = cached.tokens(side), cached.documents(side, root), cached.tokenizer
    if side == "train":
        name = f"data.source: '{data.source}'"
    elif data.validation:
        name = f"data.validation: '{data.validation}'"
    else:
        name = f"data.validation_ratio={data.validation_ratio}: the validation split of '{data.source}'"
    if sample_kind(data, request) == "documents":
        return TokenDocuments(
            tokens,
            documents,
            frame,
            truncation=data.truncation,
            truncation_side=data.truncation_side,
            targets=cached.targets(side),
            labels=cached.labels(side),
            marks=cached.marks(side),
            tokenizer=tokenizer,
            name=name,
            repetition_filter=data.repetition_filter and side == "train",
        )
    return TokenWindows(
        tokens,
        frame,
        shuffle=data.shuffle,
        evaluation=side == "validation",
        seed=seed,
        documents=documents,
        tokenizer=tokenizer,
        name=name,
        repetition_filter=data.repetition_filter and side == "train",
    )


def sample_kind(data: DataKnobs, request: Request) -> str:
    """A record with a label, a target or marks is a sample of its own; only text can be cut into windows."""
    return data.samples if request.records == "text" else "documents"


def _bytes_per_token(cached: CachedCorpus, samples: Samples) -> float:
    """What turns a loss a token into one a byte: of targets, the end of each included, or of what is learned of a
    conversation, or else of all text."""
    facts = cached.sides.get("validation") or cached.sides["train"]
    if "target_tokens" in facts:
        return facts["target_bytes"] / max(facts["target_tokens"] + facts["documents"], 1)
    if "learned_bytes" in facts:
        return facts["learned_bytes"] / max(facts["marked_tokens"], 1)
    # All that is read of the text, over all targets: ends of documents are targets too, first tokens are not.
    return facts["bytes"] * samples.share_read / max(samples.num_tokens, 1)


def _summary(
    data: DataKnobs, request: Request, cached: CachedCorpus, train: Samples, validation: Samples | None
) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "source": data.source,
        "tokenizer": data.tokenizer,
        "vocab_size": cached.tokenizer.vocab_size,
        "max_seq_length": data.max_seq_length,
        "samples": sample_kind(data, request),
        "cache": str(cached.folder),
        "cache_reused": cached.reused,
        **cached.index["read"],  # fields, skipped_records, blank_records
    }
    if request.records != "text":
        summary["records"] = request.records
    if cached.label_names:
        summary["classes"] = len(cached.label_names)
    for side, samples in (("train", train), ("validation", validation)):
        if samples is not None:
            counts = {"samples": samples.num_samples, "targets": samples.num_tokens}
            summary[side] = {**cached.sides[side], **counts}
    return summary
