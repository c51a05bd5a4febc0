"""Some rows of the real data: as many as are quickly read, divided as training divides them, and a sample of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainbook.data import Request, open_sources
from trainbook.data.prepare.corpus import training_texts
from trainbook.data.prepare.hashes import generator
from trainbook.data.prepare.split import divided, survey, text_digest
from trainbook.data.report.duplicates import ExactDuplicates
from trainbook.data.report.gather import SplitReport, gather
from trainbook.data.report.labels import Contradictions, contradictions
from trainbook.data.sources import Source
from trainbook.data.sources.fields import TEXT_ONLY
from trainbook.data.sources.records import Complain, DataRecord, Document
from trainbook.data.sources.source import Passed, bad_record
from trainbook.data.tokenizers import Tokenizer, tokenizer_config, train_bpe
from trainbook.errors import DataError
from trainbook.knobs.architectures import SIZES
from trainbook.knobs.config import Config
from trainbook.knobs.derive import intermediate_size, key_value_heads, max_target_length, task_name
from trainbook.knobs.recipes import is_recipe
from trainbook.knobs.scaling import head_width

MOST_RECORDS, MOST_CHARACTERS = 150_000, 16_000_000  # that are read of each source
KEPT_RECORDS, KEPT_CHARACTERS = 400, 400_000  # that the model is shown
SHORTEST_CUT = 4_000  # characters of a long text that are kept at the least
TOKENIZED_CHARACTERS = 4_000_000  # to know how many tokens a text has
COMPARED = 1_000  # documents of each side that are compared for near copies, and that a baseline learns from
NEIGHBOURS = 1_000  # training documents that are kept in the order of the source


@dataclass(frozen=True)
class Held:
    """A reader of records that were read before."""

    kept: list[DataRecord]
    root: str
    has_fields: bool
    nothing: str
    changed: str

    def fingerprint(self) -> dict[str, Any]:
        raise NotImplementedError("what is held in memory is never kept in a cache")

    def records(self, complain: Complain) -> Iterator[DataRecord]:
        return iter(self.kept)

    def first(self, count: int) -> list[DataRecord]:
        return self.kept[:count]


@dataclass(frozen=True)
class CheckSample:
    sides: dict[str, SplitReport]  # "train", and "validation" where something is held out: all that was read, counted
    copies: ExactDuplicates  # of the training side, where a target or label makes another record of the same text
    is_whole: bool  # all of the data was read
    num_records: int  # that were read, with those that gave no document
    left_out: Passed  # records that gave no document
    neighbours: tuple[Document, ...]  # the first training documents, in the order of the source
    contradictions: Contradictions | None = None  # equal texts with different classes; None: there are no classes
    source: Path | None = None  # the rows that the model is shown, as JSONL
    validation: Path | None = None
    has_fields: bool = True


def read_sample(config: Config, request: Request, folder: Path | None, *, everything: bool = False) -> CheckSample:
    """Divided as training divides them. With a folder, the rows for the model are written there."""
    source, validation = open_sources(config.data, request)
    left_out = Passed()
    held, is_whole = _read(source, everything, left_out)
    documents = _documents(source, held, left_out)
    num_records = len(documents)
    if not documents:
        raise DataError(f"{source.knob}: '{source.name}' has no text: {source.reader.nothing}.")
    its_held = None
    if validation is not None:
        its_held, its_whole = _read(validation, everything, left_out)
        parts = {"train": documents, "validation": _documents(validation, its_held, left_out)}
        is_whole, num_records = is_whole and its_whole, num_records + len(parts["validation"])
    else:
        plan = divided(survey(documents), source, config.data.validation_ratio, left_out)
        both = [plan.parts(index, document) for index, document in enumerate(documents)]
        parts = {"train": [part for part, _ in both if part is not None]}
        if config.data.validation_ratio > 0:
            parts["validation"] = [part for _, part in both if part is not None]
    contradictory = contradictions([survey(of_side) for of_side in parts.values()])
    look_at: dict[str, Any] = {} if contradictory is None else {"look_at": contradictory.look_at}
    seed, sides = config.training.seed, {}
    for number, (name, its_documents) in enumerate(parts.items()):
        root = (validation or source).root if name == "validation" else source.root
        sides[name] = gather(its_documents, COMPARED, seed + number, root, **look_at)
    copies = ExactDuplicates()
    for document in parts["train"]:
        record = f"{document.text}\0{document.target}\0{document.label}\0{document.tags}"
        copies.add(text_digest(record), f"{source.root}{document.origin}")
    num_records += left_out.bad + left_out.blank
    found = CheckSample(
        sides, copies, is_whole, num_records, left_out, tuple(parts["train"][:NEIGHBOURS]), contradictory
    )
    if folder is None:
        return found
    may_cut = request.records == "text"
    written = _write(held, folder / "train.jsonl", seed, may_cut)
    its_rows = _write(its_held, folder / "validation.jsonl", seed, may_cut) if its_held is not None else None
    return replace(found, source=written, validation=its_rows, has_fields=source.reader.has_fields)


def tokens_of(config: Config, side: SplitReport, tokenizer: Tokenizer) -> float:
    """About how many tokens the texts of a side have, as training tokenizes them. `tokenizer` is of the shrunk
    configuration: a BPE with a small vocabulary there, in place of the one that is asked for."""
    asked = tokenizer_config(config.data.tokenizer, config.data.vocab_size)
    if asked["kind"] == "bpe":
        tokenizer = train_bpe(training_texts(_some(side), TEXT_ONLY), asked["vocab_size"])
    tokens = characters = 0
    for document in _some(side):
        tokens += len(tokenizer.encode(document.text))
        characters += len(document.text)
    return side.num_characters * tokens / max(1, characters) + side.num_documents  # each has an end


def _some(side: SplitReport) -> Iterator[Document]:
    """Texts of a side up to so many characters, the last one cut."""
    left = TOKENIZED_CHARACTERS
    for document in side.documents:
        yield replace(document, text=document.text[:left])
        left -= len(document.text)
        if left <= 0:
            return


def _read(source: Source, everything: bool, left_out: Passed) -> tuple[list[DataRecord], bool]:
    """The records, and whether these are all. What cannot be read is counted."""
    held: list[DataRecord] = []
    characters = 0

    def complain(message: str) -> None:
        if source.wanted.bad_lines == "error":
            raise bad_record(message)
        left_out.add_bad(message)

    records = source.reader.records(complain)
    for record in records:
        if record.document is not None:
            held.append(_beginning(record, record.document, MOST_CHARACTERS - characters))
            return held, False
        held.append(record)
        characters += sum(len(value) for value in record.fields.values() if isinstance(value, str))
        if not everything and (len(held) >= MOST_RECORDS or characters >= MOST_CHARACTERS):
            return held, next(iter(records), None) is None
    return held, True


def _beginning(record: DataRecord, document: Document, num_characters: int) -> DataRecord:
    """Of a text that is too long for memory."""
    chunks, text = document.chunks(), ""
    while len(text) < num_characters and (chunk := next(chunks, None)) is not None:
        text += chunk
    return DataRecord({"text": text[:num_characters]}, record.origin, record.first_line, record.group)


def _documents(source: Source, held: list[DataRecord], left_out: Passed) -> list[Document]:
    reader = source.reader
    part = source.part(Held(held, reader.root, reader.has_fields, reader.nothing, reader.changed))
    documents = list(part.documents())
    left_out.add(part.passed)
    return documents


def _write(held: list[DataRecord], path: Path, seed: int, may_cut: bool) -> Path:
    """Some of the records as JSONL, in their order; long texts are cut where nothing else belongs to them."""
    draw = generator("check-sample", seed)
    chosen = sorted(draw.permutation(len(held))[:KEPT_RECORDS].tolist())
    each = max(SHORTEST_CUT, KEPT_CHARACTERS // max(1, len(chosen)))
    left = KEPT_CHARACTERS if may_cut else None
    with path.open("w", encoding="utf-8") as file:
        for fields in (dict(held[index].fields) for index in chosen):
            if left is not None:
                if left <= 0:
                    break
                fields = {name: value[:each] if isinstance(value, str) else value for name, value in fields.items()}
                left -= sum(len(value) for value in fields.values() if isinstance(value, str))
            file.write(json.dumps(fields, default=str) + "\n")
    return path


# The same configuration, smaller: every choice of architecture stays, only sizes and lengths shrink.


LAYERS, WIDTH, HEADS, HEAD_WIDTH = 2, 64, 4, 16
POSITIONS, TARGET_POSITIONS = 64, 32
BPE_TOKENS = 512
ROWS, ROWS_AT_A_TIME = 4, 2  # of a batch: two micro-batches, so that accumulation is always on
STEPS = 40


def shrunk(
    config: Config, source: Path, validation: Path | None, cache: Path, has_fields: bool, positions: int = POSITIONS
) -> Config:
    """For the rows in these files. A pretrained model has the size that it has."""
    data: dict[str, Any] = {
        "source": str(source),
        "validation": str(validation) if validation else None,
        "max_seq_length": min(config.data.max_seq_length, positions),
        "truncation": True,  # to the length that is shorter here
        # Rows were chosen already; of so few, a filter might leave none.
        "repetition_filter": False,
        "gopher_filter": False,
        "quarantine": None,
    }
    if config.data.max_target_length is not None or task_name(config) in ("span", "seq2seq"):
        data["max_target_length"] = min(max_target_length(config), TARGET_POSITIONS)
    if config.data.tokenizer == "bpe":
        data["vocab_size"] = min(config.data.vocab_size or BPE_TOKENS, BPE_TOKENS)
    if not has_fields:
        data |= {"text_field": None, "label_field": None, "target_field": None, "group_field": None}
    small = _with(config, data=data, model=_sizes(config))
    small = _with(
        small,
        batch={
            "global_batch_size": ROWS,
            "per_device_train_batch_size": ROWS_AT_A_TIME,
            "gradient_accumulation_steps": None,
        },
        training={"max_steps": STEPS, "num_train_epochs": None, "max_tokens": None, "device": "cpu"},
        schedule={"warmup_steps": None, "warmup_ratio": 0.1},
    )
    return comparable(small, cache)


def comparable(config: Config, cache: Path | None = None) -> Config:
    """One process that computes in fp32, without what only costs time: so that what must be equal can be compared."""
    data: dict[str, Any] = {"num_workers": 0}
    pretrained = config.model.pretrained
    if cache is not None:
        data["cache_dir"] = str(cache)
    return _with(
        config,
        data=data,
        # What a recipe is to pretrain first is not there yet: the same model begins with new weights.
        model={"quantize_base": "none", "pretrained": None if is_recipe(pretrained or "") else pretrained},
        optimizer={"tuned_batch_size": None},
        precision={"compute": "fp32", "products": "same", "weights": "fp32", "tf32": False},
        memory={"compile": "off"},
        distributed={"strategy": "single"},
        evaluation={"generate": False, "baseline": False, "metric_for_best_model": "loss", "eval_max_samples": 16},
        checkpoint={"asynchronous": False},
    )


def _sizes(config: Config) -> dict[str, Any]:
    model = config.model
    if model.pretrained is not None and not is_recipe(model.pretrained):
        return {}
    sizes: dict[str, Any] = {
        "num_hidden_layers": min(model.num_hidden_layers, LAYERS),
        "num_decoder_layers": min(model.num_decoder_layers, LAYERS) if model.num_decoder_layers else None,
    }
    if model.hidden_size <= WIDTH:
        return sizes
    heads = min(model.num_attention_heads, HEADS)
    shared = model.num_attention_heads // key_value_heads(config)  # heads to one key and value
    inner = intermediate_size(config) * WIDTH / model.hidden_size
    return sizes | {
        "hidden_size": WIDTH if heads == HEADS else heads * HEAD_WIDTH,
        "num_attention_heads": heads,
        "head_width": min(head_width(config), HEAD_WIDTH) if model.head_width else None,
        "num_key_value_heads": max(1, heads // shared) if model.num_key_value_heads else None,
        "intermediate_size": max(8, round(inner / 8) * 8) if model.intermediate_size else None,
    }


def _with(config: Config, **sections: dict[str, Any]) -> Config:
    changed = {name: getattr(config, name).model_copy(update=values) for name, values in sections.items()}
    return config.model_copy(update=changed)


SHOWN = (
    "model.pretrained",
    *SIZES,
    "model.quantize_base",
    "data.max_seq_length",
    "data.max_target_length",
    "data.vocab_size",
    "precision.compute",
    "precision.products",
    "precision.weights",
    "distributed.strategy",
)


def differences(asked: Config, used: Config) -> dict[str, tuple[Any, Any]]:
    """What of the model is not as it was asked for, by knob: as asked for, and as checked."""
    pairs = {path: (asked.get(path), used.get(path)) for path in SHOWN}
    return {path: (one, other) for path, (one, other) in pairs.items() if one != other and one != "auto"}
