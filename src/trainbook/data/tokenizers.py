"""Text to token ids and back: bytes, characters, byte-level BPE, or a tokenizer.json of the user's."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trainbook.data.names import did_you_mean, nearest
from trainbook.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

NAMES = ("byte", "char", "bpe")
FILE_NAME = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
DEFAULT_BPE_VOCAB_SIZE = 4096
MIN_BPE_VOCAB_SIZE = 257  # every byte, and the end of text

# What other people's tokenizers call the end of a document, the most specific name first.
END_OF_TEXT_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|im_end|>", "[SEP]")
# Names from elsewhere, and what comes nearest to them here.
RELATED_NAMES = {
    "bytes": "byte",
    "characters": "char",
    "sentencepiece": "bpe",
    "wordpiece": "bpe",
    "unigram": "bpe",
    "tiktoken": "bpe",
    "gpt2": "bpe",
}


class Tokenizer(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def end_of_text(self) -> int | None: ...

    @property
    def is_lossless(self) -> bool:
        """Decoding gives back the very text that was encoded, line breaks included."""
        ...

    @property
    def joins_pieces(self) -> bool:
        """A text cut between an unindented line and the one before it encodes to the same tokens as the whole."""
        ...

    @property
    def fingerprint(self) -> str: ...

    def encode(self, text: str) -> np.ndarray:
        """Token ids (int64) of the text alone, without any special token, whatever the text says."""
        ...

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tokenizer.json into the folder: the same tokenizer always writes the same bytes."""
        ...


class _Saved:
    """Saving and identity follow from one canonical text."""

    def _serialized(self) -> str:
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._serialized().encode("utf-8")).hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / FILE_NAME).write_bytes(self._serialized().encode("utf-8"))


class ByteTokenizer(_Saved):
    """The 256 bytes of UTF-8 and an end of text."""

    vocab_size = 257
    end_of_text = 256
    is_lossless = True
    joins_pieces = True

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8).astype(np.int64)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        runs = _runs(ids, self.vocab_size, self.end_of_text)
        return END_OF_TEXT.join(run.astype(np.uint8).tobytes().decode("utf-8", "replace") for run in runs)

    def _serialized(self) -> str:
        return json.dumps({"trainbook": "byte"})


class CharTokenizer(_Saved):
    """One token a character of a fixed alphabet, in the order of their code points."""

    is_lossless = True
    joins_pieces = True

    def __init__(self, characters: Iterable[str], with_end_of_text: bool) -> None:
        self.characters = "".join(sorted(set(characters)))
        self.end_of_text = len(self.characters) if with_end_of_text else None
        self.vocab_size = len(self.characters) + with_end_of_text
        self._code_points = np.array([ord(character) for character in self.characters], dtype="<u4")

    def encode(self, text: str) -> np.ndarray:
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        ids = np.searchsorted(self._code_points, points)
        known = ids < len(self._code_points)
        known[known] = self._code_points[ids[known]] == points[known]
        if not known.all():
            character = text[int(np.argmin(known))]
            raise DataError(
                f"the char tokenizer has no token for {character!r} (U+{ord(character):04X}): it knows the "
                f"{len(self.characters)} characters of its training data only."
            )
        return ids.astype(np.int64)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        runs = _runs(ids, self.vocab_size, self.end_of_text)
        return END_OF_TEXT.join(self._code_points[run].tobytes().decode("utf-32-le", "surrogatepass") for run in runs)

    def _serialized(self) -> str:
        content = {"trainbook": "char", "characters": self.characters, "end_of_text": self.end_of_text is not None}
        return json.dumps(content, ensure_ascii=True)


class LibraryBackedTokenizer(_Saved):
    """A tokenizer of the `tokenizers` package: our own BPE, or one that the user brings."""

    def __init__(self, library_tokenizer: LibraryTokenizer, joins_pieces: bool = False) -> None:
        self._tokenizer = library_tokenizer
        # Saved as it came; the switches below are for encoding and would not survive serialisation anyway.
        self._json = library_tokenizer.to_str()
        # A document that happens to contain "<|endoftext|>" must not end there.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.joins_pieces = joins_pieces
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        # Ids may have gaps, so the largest one decides how many rows a model needs.
        self.vocab_size = max(ids.values()) + 1
        self.end_of_text = next((ids[name] for name in END_OF_TEXT_NAMES if name in ids), None)
        probe = "One  two,\n\n\tthree é.\n"
        self.is_lossless = self.decode(self.encode(probe)) == probe

    def encode(self, text: str) -> np.ndarray:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        encodable = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        encodings = self._tokenizer.encode_batch_fast(encodable, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(_known(ids, self.vocab_size).tolist(), skip_special_tokens=False)

    def _serialized(self) -> str:
        return self._json

    def __getstate__(self) -> dict[str, Any]:
        return {"json": self._json, "joins_pieces": self.joins_pieces}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(_library().Tokenizer.from_str(state["json"]), state["joins_pieces"])


LONGEST_WORD = 50_000  # characters


def train_bpe(texts: Iterator[str], vocab_size: int) -> LibraryBackedTokenizer:
    """Byte-level BPE: any text can be written in it. Small data may yield fewer tokens than asked for."""
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # Merging takes time that grows with the square of a word's length: a line of millions without a blank is cut.
    bounded = (text[at : at + LONGEST_WORD] for text in texts for at in range(0, len(text), LONGEST_WORD))
    tokenizer.train_from_iterator(bounded, trainer)
    return LibraryBackedTokenizer(tokenizer, joins_pieces=True)


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer saved in a folder, or in the tokenizer.json itself."""
    path = Path(folder).expanduser()
    if path.is_dir():
        path = path / FILE_NAME
    try:
        content = path.read_text(encoding="utf-8")
        parsed = json.loads(content)
    except FileNotFoundError:
        raise DataError(f"there is no tokenizer at '{path}'.{_similar_file(path)}") from None
    except OSError as error:
        raise DataError(f"the tokenizer '{path}' cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise DataError(f"the tokenizer '{path}' must be a JSON file, but {error}.") from None
    kind = parsed.get("trainbook") if isinstance(parsed, dict) else None
    if kind == "byte":
        return ByteTokenizer()
    if kind == "char":
        return CharTokenizer(parsed["characters"], parsed["end_of_text"])
    try:
        return LibraryBackedTokenizer(_library().Tokenizer.from_str(content))
    except Exception as error:  # the package raises a bare Exception for what it cannot read
        raise DataError(f"the tokenizer '{path}' must be a tokenizer.json of the tokenizers package: {error}") from None


def tokenizer_config(name: str, vocab_size: int | None) -> dict[str, Any]:
    """Check what the user asked for; the answer determines the tokenizer, together with the text it is trained on."""
    if name == "bpe":
        size = vocab_size or DEFAULT_BPE_VOCAB_SIZE
        if size < MIN_BPE_VOCAB_SIZE:
            raise DataError(
                f"data.vocab_size: must be >= {MIN_BPE_VOCAB_SIZE} for data.tokenizer=bpe "
                f"(256 bytes and the end of text), but got {size}."
            )
        return {"kind": "bpe", "vocab_size": size}
    if name in NAMES:
        return {"kind": name}
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / FILE_NAME
    if not path.is_file():
        raise DataError(_unknown(name, path))
    return {"kind": "file", "path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def check_vocab_size(name: str, asked: int | None, tokenizer: Tokenizer) -> None:
    """Only BPE has a size to choose; for the others, asking for another size than theirs is a mistake."""
    if name != "bpe" and asked is not None and asked != tokenizer.vocab_size:
        raise DataError(
            f"data.vocab_size: only data.tokenizer=bpe can choose its size; "
            f"data.tokenizer={name} has {tokenizer.vocab_size} tokens, but got {asked}."
        )


def _unknown(name: str, path: Path) -> str:
    if os.sep in name or name.endswith(".json"):
        return f"data.tokenizer: '{name}' does not exist.{_similar_file(path)}"
    match = nearest(name, (*NAMES, *RELATED_NAMES))
    hint = f" Did you mean '{RELATED_NAMES.get(match, match)}'?" if match else ""
    return (
        f"data.tokenizer: there is no tokenizer '{name}'; it must be {', '.join(NAMES)}, "
        f"or the path of a tokenizer.json.{hint}"
    )


def _similar_file(path: Path) -> str:
    return did_you_mean(path.name, sorted(os.listdir(path.parent))) if path.parent.is_dir() else ""


def _known(ids: Iterable[int], vocab_size: int) -> np.ndarray:
    """Ids that stand for a token: a model's table may have padding rows beyond the vocabulary, which say nothing."""
    array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64)
    return array[(array >= 0) & (array < vocab_size)]


def _runs(ids: Iterable[int], vocab_size: int, end_of_text: int | None) -> list[np.ndarray]:
    """The ids between ends of text."""
    known = _known(ids, vocab_size)
    if end_of_text is None:
        return [known]
    return [run[run != end_of_text] for run in np.split(known, np.flatnonzero(known == end_of_text))]


def _library() -> Any:
    # Said before the first use, or every later fork prints a warning about its threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    import tokenizers

    return tokenizers
