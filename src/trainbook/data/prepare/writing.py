"""The files of one side: its tokens, where each document lies in them, and what else each record says."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from trainbook.data.samples.base import ORIGINS_FILE, TABLE_FILE
from trainbook.data.sources.chat import encode_with_specials
from trainbook.data.sources.fields import TEXT_ONLY, FieldSpec
from trainbook.data.sources.long import LongDocument
from trainbook.data.sources.records import Document
from trainbook.data.sources.values import regression_hint
from trainbook.data.tokenizers import Tokenizer
from trainbook.data.tokenizers.cuts import CannotCut, in_pieces
from trainbook.errors import DataError

TOKENS_FILE = "tokens.bin"
TARGETS_FILE = "targets.bin"
TARGETS_TABLE_FILE = "targets.npy"  # one row a document: start, length
LABELS_FILE = "labels.npy"
MARKS_FILE = "marks.bin"
MARKS_TYPE = "int16"

PIECE_CHARACTERS = 1 << 17  # at least so much of a long document is encoded by itself
BATCH_CHARACTERS = 1 << 20  # what is encoded at a time, by all cores: bounds the memory that it takes
LONGEST_UNCUT = 1 << 24  # characters of a long document without a place to cut it


@dataclass(frozen=True)
class Encoding:
    """How documents become numbers."""

    tokenizer: Tokenizer
    dtype: str  # of tokens
    wanted: FieldSpec = TEXT_ONLY
    label_names: tuple[str, ...] = ()
    specials: Mapping[str, int] = field(default_factory=dict)  # that the text of a conversation may name
    validation_ratio: float | None = None  # on a side that was divided off by it
    begin: tuple[int, ...] = ()  # before each document of a stream

    @property
    def has_marks(self) -> bool:
        return self.wanted.records in ("tagged", "chat")


class _Piece(NamedTuple):
    document: Document
    text: str
    begins: bool


def write_side(
    folder: Path,
    documents: Iterable[Document],
    encoding: Encoding,
    advance: Callable[[int], None] = lambda num_bytes: None,
    root: str = "",
    closed: bool = False,
) -> dict[str, int]:
    """Write a side into its folder; the answer is what there is of everything. A side that is `closed` has an end of
    text behind its last document too, so that another may follow it."""
    return write_sides([folder], ((0, document) for document in documents), [encoding], advance, root, closed)[0]


def write_sides(
    folders: Sequence[Path],
    documents: Iterable[tuple[int, Document]],
    encodings: Sequence[Encoding],
    advance: Callable[[int], None] = lambda num_bytes: None,
    root: str = "",
    closed: bool = False,
) -> list[dict[str, int]]:
    """Several sides in one reading. Each document comes with the number of its side."""
    writers = [_Writer(folder, encoding, root, closed) for folder, encoding in zip(folders, encodings, strict=True)]
    tokenizer = None if encodings[0].has_marks else encodings[0].tokenizer
    # Several pieces of documents are encoded at a time, so that all cores have some to encode.
    batches: list[list[_Piece]] = [[] for _ in writers]
    sizes = [0] * len(writers)

    def write(side: int) -> None:
        before = writers[side].num_bytes
        writers[side].write(batches[side])
        advance(writers[side].num_bytes - before)
        batches[side], sizes[side] = [], 0

    with ExitStack() as opened:
        for writer in writers:
            opened.enter_context(writer)
        for side, document in documents:
            if tokenizer is not None and (isinstance(document, LongDocument) or len(document.text) > PIECE_CHARACTERS):
                texts = pieces_of(document, tokenizer, root)
            else:
                texts = [document.text] if document.text or tokenizer is None else ()
            for number, text in enumerate(texts):
                batches[side].append(_Piece(document, text, number == 0))
                sizes[side] += len(text)
                if sizes[side] >= BATCH_CHARACTERS:
                    write(side)
        for side, batch in enumerate(batches):
            if batch:
                write(side)
    return [writer.facts for writer in writers]


def pieces_of(document: Document, tokenizer: Tokenizer, root: str) -> Iterator[str]:
    """A document in pieces that encode to the same tokens as the whole, the first as a text and the others as what goes
    on with one (`encode_rest`)."""
    longest = LONGEST_UNCUT if isinstance(document, LongDocument) else None
    try:
        # Only a long document is worth finding out where it may be cut.
        is_short = longest is None and document.num_characters <= PIECE_CHARACTERS
        yield from in_pieces(document.chunks(), None if is_short else tokenizer.cuts, PIECE_CHARACTERS, longest)
    except CannotCut as error:
        reason = f"it has {error}" if tokenizer.cuts is not None else "this tokenizer has no safe place to split a text"
        raise DataError(
            f"{root}{document.origin}: this text is too long to be tokenized as a whole, and cannot be tokenized in "
            f"pieces: {reason}. Split it into several files or into lines of a JSONL file, insert line breaks or "
            "spaces, or use data.tokenizer=byte or char, with which a text can be split anywhere."
        ) from None


class _Writer:
    def __init__(self, folder: Path, encoding: Encoding, root: str, closed: bool) -> None:
        self.folder, self.encoding, self.root, self.closed = folder, encoding, root, closed
        self.tokenizer = encoding.tokenizer
        self.starts, self.lengths, self.first_lines = array("q"), array("q"), array("q")
        self.target_starts, self.target_lengths = array("q"), array("q")
        self.labels = array("d" if encoding.wanted.labels == "number" else "q")
        self.label_documents = array("q")  # of several classes: the document that each label is of
        self.classes = {name: number for number, name in enumerate(encoding.label_names)}
        self.facts = {"tokens": 0, "documents": 0, "bytes": 0}
        if encoding.wanted.records == "pairs":
            self.facts |= {"target_tokens": 0, "target_bytes": 0}
        if encoding.has_marks:
            self.facts["marked_tokens"] = 0
        if encoding.wanted.chat is not None:
            self.facts["learned_bytes"] = 0

    def __enter__(self) -> None:
        kind = self.encoding.wanted.records
        self._tokens = (self.folder / TOKENS_FILE).open("wb")
        self._origins = (self.folder / ORIGINS_FILE).open("w", encoding="utf-8")
        self._targets = (self.folder / TARGETS_FILE).open("wb") if kind == "pairs" else None
        self._marks = (self.folder / MARKS_FILE).open("wb") if self.encoding.has_marks else None

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None and self.closed:
            self._end()
        for stream in (self._tokens, self._origins, self._targets, self._marks):
            if stream is not None:
                stream.close()
        if kind is None:
            self._write_tables()

    def write(self, batch: list[_Piece]) -> None:
        if self.encoding.has_marks:
            encoded, marks = self._encode_marked(batch)
        else:
            encoded, marks = self._encode_pieces(batch), []
        self._write_tokens(batch, encoded)
        for number, its_marks in enumerate(marks, start=len(self.starts) - len(marks)):
            assert self._marks is not None
            if number and self.tokenizer.end_of_text is not None:
                self._marks.write(np.array([-1], dtype=MARKS_TYPE).tobytes())
            self._marks.write(its_marks.astype(MARKS_TYPE).tobytes())
            self.facts["marked_tokens"] += int((its_marks >= 0).sum())
        if self._targets is not None:
            begun = [piece for piece in batch if piece.begins]
            for piece, ids in zip(begun, self._encode(begun, [_target(piece) for piece in begun]), strict=True):
                self.target_starts.append(self.facts["target_tokens"])
                self.target_lengths.append(len(ids))
                self._append(self._targets, ids, self.encoding.dtype, "target_tokens")
                self.facts["target_bytes"] += len(_target(piece).encode("utf-8"))

    def _write_tokens(self, batch: list[_Piece], encoded: Sequence[np.ndarray]) -> None:
        """All of a batch at once: documents may be a few tokens long, and there may be very many of them."""
        begins = np.array([piece.begins for piece in batch])
        lengths = np.array([len(ids) for ids in encoded])
        begin, end = self.encoding.begin, self.tokenizer.end_of_text
        # Before each document the end of the one before, and what it begins with.
        before = np.where(begins, len(begin) + (end is not None), 0)
        if not self.starts and end is not None:
            before[0] -= 1
        places = np.cumsum(before + lengths) - lengths
        tokens = np.empty(int(before.sum() + lengths.sum()), dtype=self.encoding.dtype)
        for number, token in enumerate(begin):
            tokens[places[begins] - len(begin) + number] = token
        if end is not None:
            tokens[(places - before)[begins & (before > len(begin))]] = end
        for place, ids in zip(places.tolist(), encoded, strict=True):
            tokens[place : place + len(ids)] = ids
        self._tokens.write(tokens.tobytes())

        documents = [piece.document for piece in batch if piece.begins]
        of_each = np.cumsum(begins)  # 0: the document that began in an earlier batch
        totals = np.bincount(of_each, weights=lengths, minlength=len(documents) + 1).astype(np.int64).tolist()
        if totals[0]:
            self.lengths[-1] += totals[0]
        self.lengths.extend(totals[1:])
        self.starts.extend((self.facts["tokens"] + places[begins]).tolist())
        self.first_lines.extend(document.first_line for document in documents)
        self._origins.write("".join(f"{json.dumps(document.origin)}\n" for document in documents))
        self.facts["tokens"] += len(tokens)
        self.facts["bytes"] += sum(len(piece.text.encode("utf-8")) for piece in batch)
        if self.encoding.wanted.records == "labelled":
            for document in documents:
                self._append_label(document)
                self.facts["documents"] += 1
        else:
            self.facts["documents"] += len(documents)

    def _end(self) -> None:
        """The end of the document before, if there is one."""
        end = self.tokenizer.end_of_text
        if self.starts and end is not None:
            self._append(self._tokens, np.array([end]), self.encoding.dtype, "tokens")
            if self._marks is not None:
                self._marks.write(np.array([-1], dtype=MARKS_TYPE).tobytes())

    def _append_label(self, document: Document) -> None:
        if self.encoding.wanted.labels == "number":
            assert isinstance(document.label, float)
            self.labels.append(document.label)
            return
        for name in document.classes:
            self.labels.append(self._class(name, document))
            self.label_documents.append(self.facts["documents"])

    def _class(self, name: str, document: Document) -> int:
        number = self.classes.get(name)
        ratio = self.encoding.validation_ratio
        if number is None and ratio is not None:
            raise DataError(
                f"{self.root}{document.origin}: the class '{name}' occurs only in the validation split "
                f"(data.validation_ratio={ratio:g}), so the model cannot learn it. Add documents of that class, set "
                f"data.validation to a separate source, or set data.validation_ratio=0.{regression_hint(name)}"
            )
        if number is None:
            raise DataError(
                f"{self.root}{document.origin}: the class '{name}' is not in the training data, so the model cannot "
                f"learn it; the training data has {', '.join(map(repr, self.encoding.label_names[:10]))}"
                + (" and others." if len(self.classes) > 10 else ".")
            )
        return number

    def _append(self, stream: IO[bytes], ids: np.ndarray, dtype: str, count: str) -> None:
        stream.write(ids.astype(dtype).tobytes())
        self.facts[count] += len(ids)

    def _encode_pieces(self, batch: list[_Piece]) -> list[np.ndarray]:
        """What goes on with a text is encoded apart: some tokenizers put something before each beginning."""
        rest = [piece for piece in batch if not piece.begins]
        begun = [piece for piece in batch if piece.begins]
        found = iter(self._encode(begun, [piece.text for piece in begun]) if begun else ())
        texts = [piece.text for piece in rest]
        more = iter(self._named(rest, texts, self.tokenizer.encode_rest) if rest else ())
        return [next(found if piece.begins else more) for piece in batch]

    @property
    def num_bytes(self) -> int:
        """Of the texts that were written so far."""
        return self.facts["bytes"] + self.facts.get("target_bytes", 0)

    def _encode(self, batch: list[_Piece], texts: list[str]) -> list[np.ndarray]:
        return self._named(batch, texts, self.tokenizer.encode_many)

    def _encode_marked(self, batch: list[_Piece]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        def encode(texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
            return encode_with_specials(texts, self.tokenizer, self.encoding.specials)

        found = self._named(batch, [piece.text for piece in batch], encode)
        documents = [piece.document for piece in batch]
        marks = [self._marks_of(document, starts) for document, (_, starts) in zip(documents, found, strict=True)]
        return [ids for ids, _ in found], marks

    def _marks_of(self, document: Document, starts: np.ndarray) -> np.ndarray:
        if document.words is None:
            self._count_learned(document)
            return learned_marks(starts, document.learned)
        numbers = [self._class(tag, document) for tag in document.tags or ()]
        return word_marks(starts, document.words, numbers)

    def _count_learned(self, document: Document) -> None:
        """Special tokens stand for no text."""
        if self.encoding.wanted.chat is not None:
            for begin, end in document.learned or [(0, len(document.text))]:
                parts = self.encoding.wanted.chat.plain_parts(document.text[begin:end])
                self.facts["learned_bytes"] += sum(len(part.encode("utf-8")) for part in parts)

    def _named(self, batch: list[_Piece], texts: list[str], encode: Callable[[list[str]], Any]) -> Any:
        try:
            return encode(texts)
        except DataError:
            # Only on failure is each one encoded alone, to say which document it was.
            for piece, text in zip(batch, texts, strict=True):
                try:
                    encode([text])
                except DataError as error:
                    raise DataError(f"{self.root}{piece.document.origin}: {error}") from None
            raise

    def _write_tables(self) -> None:
        _save(
            self.folder / TABLE_FILE, np.stack([*map(_column, (self.starts, self.lengths, self.first_lines))], axis=1)
        )
        wanted = self.encoding.wanted
        if wanted.records == "pairs":
            columns = np.stack([_column(self.target_starts), _column(self.target_lengths)], axis=1)
            _save(self.folder / TARGETS_TABLE_FILE, columns)
        if wanted.records == "labelled":
            labels = np.array(self.labels)
            if wanted.labels == "number":
                labels = labels.astype(np.float32)
            elif wanted.labels == "classes":
                flags = np.zeros((self.facts["documents"], len(self.classes)), dtype=np.float32)
                flags[np.array(self.label_documents, dtype=np.int64), labels] = 1
                labels = flags
            _save(self.folder / LABELS_FILE, labels)


def word_marks(starts: np.ndarray, words: tuple[str, ...], numbers: list[int]) -> np.ndarray:
    """The class of each word at its first token. A word of which a tokenizer keeps nothing has none."""
    marks = np.full(len(starts), -1, dtype=np.int64)
    lengths = np.array([len(word) for word in words])
    begins = np.cumsum(lengths + 1) - lengths - 1  # a blank lies between them
    tokens = np.searchsorted(starts, begins)
    inside = tokens < len(starts)
    inside[inside] = starts[tokens[inside]] < (begins + lengths)[inside]
    marks[tokens[inside]] = np.array(numbers, dtype=np.int64)[inside]
    return marks


def learned_marks(starts: np.ndarray, learned: tuple[tuple[int, int], ...] | None) -> np.ndarray:
    """1 at each token that begins in what is to be learned."""
    if learned is None:
        return np.ones(len(starts), dtype=np.int64)
    marks = np.full(len(starts), -1, dtype=np.int64)
    for begin, end in learned:
        marks[(starts >= begin) & (starts < end)] = 1
    return marks


def _target(piece: _Piece) -> str:
    assert piece.document.target is not None, "pairs have a target each"
    return piece.document.target


def _column(values: array) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _save(path: Path, values: np.ndarray) -> None:
    np.save(path, values, allow_pickle=False)
