"""From sources to files of tokens: split, train the tokenizer where there is something to train, encode, write."""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainbook.data.documents import ORIGINS_FILE, TABLE_FILE
from trainbook.data.sources import Document, Source
from trainbook.data.split import Split, Survey, split, survey
from trainbook.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    load_tokenizer,
    train_bpe,
)
from trainbook.errors import DataError

TOKENS_FILE = "tokens.bin"
TOKENIZER_FOLDER = "tokenizer"
PIECE_CHARACTERS = 1 << 20  # what is encoded at a time: bounds the memory that one long document needs
# Between a line and the next one, where no white space is near: no pre-tokenizer of ours joins across it.
_SEAM = re.compile(r"(?<=\S\n)(?=\S)")


@dataclass(frozen=True)
class Corpus:
    """Everything that determines the tokens."""

    source: Source
    validation: Source | None
    validation_ratio: float
    tokenizer: dict[str, Any]  # from tokenizer_config

    @property
    def has_validation(self) -> bool:
        return self.validation is not None or self.validation_ratio > 0


def tokenise(corpus: Corpus, folder: Path) -> dict[str, Any]:
    """Write the tokenizer and both sides into the folder; the answer is what an index should say of them."""
    with_alphabet = corpus.tokenizer["kind"] == "char"
    seen = _surveyed(corpus.source, with_alphabet)
    seen_validation = _surveyed(corpus.validation, with_alphabet) if corpus.validation else None
    plan = split(seen, 0.0 if corpus.validation else corpus.validation_ratio)
    sides: dict[str, Callable[[], Iterator[Document]]] = {"train": lambda: _side(corpus.source, plan, 0)}
    if corpus.validation:
        sides["validation"] = corpus.validation.documents
    elif corpus.has_validation:
        sides["validation"] = lambda: _side(corpus.source, plan, 1)

    tokenizer = _make_tokenizer(corpus, seen, seen_validation, sides["train"])
    tokenizer.save(folder / TOKENIZER_FOLDER)
    facts: dict[str, Any] = {"dtype": "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32", "sides": {}}
    total = seen.num_characters + (seen_validation.num_characters if seen_validation else 0)
    with _progress(total) as advance:
        for name, documents in sides.items():
            (folder / name).mkdir()
            facts["sides"][name] = write_side(folder / name, documents(), tokenizer, facts["dtype"], advance)
    if seen_validation:
        known = set(seen.digests)
        facts["sides"]["validation"]["also_in_train"] = sum(digest in known for digest in seen_validation.digests)
    return facts


def write_side(
    folder: Path, documents: Iterable[Document], tokenizer: Tokenizer, dtype: str, advance: Callable[[int], None]
) -> dict[str, int]:
    starts, lengths, first_lines = array("q"), array("q"), array("q")
    position = num_bytes = 0
    with (folder / TOKENS_FILE).open("wb") as tokens, (folder / ORIGINS_FILE).open("w", encoding="utf-8") as origins:
        for batch in _batches(documents, tokenizer.joins_pieces):
            for piece, ids in zip(batch, _encode(batch, tokenizer), strict=True):
                if piece.begins:
                    if starts and tokenizer.end_of_text is not None:
                        tokens.write(np.array([tokenizer.end_of_text], dtype=dtype).tobytes())
                        position += 1
                    starts.append(position)
                    lengths.append(0)
                    first_lines.append(piece.document.first_line)
                    origins.write(json.dumps(piece.document.origin) + "\n")
                tokens.write(ids.astype(dtype).tobytes())
                position += len(ids)
                lengths[-1] += len(ids)
                num_bytes += len(piece.text.encode("utf-8"))
                advance(len(piece.text))
    table = np.stack([np.array(column, dtype=np.int64) for column in (starts, lengths, first_lines)], axis=1)
    np.save(folder / TABLE_FILE, table, allow_pickle=False)
    return {"tokens": position, "documents": len(starts), "bytes": num_bytes}


@dataclass(frozen=True)
class _Piece:
    document: Document
    text: str
    begins: bool


def _batches(documents: Iterable[Document], in_pieces: bool) -> Iterator[list[_Piece]]:
    """Pieces that together are about as long as one piece may be, so that many small documents go at once."""
    batch: list[_Piece] = []
    size = 0
    for document in documents:
        texts = pieces(document.text, PIECE_CHARACTERS) if in_pieces else [document.text]
        for number, text in enumerate(texts):
            batch.append(_Piece(document, text, begins=number == 0))
            size += len(text)
            if size >= PIECE_CHARACTERS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def pieces(text: str, length: int) -> Iterator[str]:
    """The text in parts of at least this length, cut only where both sides encode as they do together."""
    begin = 0
    while seam := _SEAM.search(text, begin + length):
        yield text[begin : seam.start()]
        begin = seam.start()
    yield text[begin:]


def _encode(batch: list[_Piece], tokenizer: Tokenizer) -> list[np.ndarray]:
    try:
        return tokenizer.encode_many([piece.text for piece in batch])
    except DataError:
        # Only on failure is each one encoded alone, to say which document it was.
        for piece in batch:
            try:
                tokenizer.encode(piece.text)
            except DataError as error:
                raise DataError(f"{piece.document.origin}: {error}") from None
        raise


def _surveyed(source: Source, with_alphabet: bool) -> Survey:
    seen = survey(source.documents(), with_alphabet)
    if seen.num_documents == 0:
        files = "its one file is" if len(source.files) == 1 else f"all of its {len(source.files)} files are"
        raise DataError(f"{source.knob}: '{source.name}' has no text: {files} empty.")
    return seen


def _side(source: Source, plan: Split, side: int) -> Iterator[Document]:
    for index, document in enumerate(source.documents()):
        part = plan.parts(index, document)[side]
        if part is not None:
            yield part


def _make_tokenizer(
    corpus: Corpus, seen: Survey, seen_validation: Survey | None, train: Callable[[], Iterator[Document]]
) -> Tokenizer:
    config = corpus.tokenizer
    tokenizer: Tokenizer
    if config["kind"] == "byte":
        tokenizer = ByteTokenizer()
    elif config["kind"] == "char":
        surveys = [seen, seen_validation] if seen_validation else [seen]
        alphabet = frozenset().union(*(part.alphabet for part in surveys))
        tokenizer = CharTokenizer(alphabet, with_end_of_text=any(part.num_documents > 1 for part in surveys))
    elif config["kind"] == "bpe":
        texts = (text for document in train() for text in pieces(document.text, PIECE_CHARACTERS))
        tokenizer = train_bpe(texts, config["vocab_size"])
    else:
        tokenizer = load_tokenizer(config["path"])
    return tokenizer


@contextmanager
def _progress(total_characters: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda characters: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tokenising", total=total_characters)
        yield lambda characters: bar.advance(task, characters)
