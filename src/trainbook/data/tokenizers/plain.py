"""Tokenizers with nothing to train: one token per byte, per character, or per word."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from trainbook.data.tokenizers.base import FILE_NAME, BaseTokenizer, appended, in_order, known, own_names, the_library
from trainbook.data.tokenizers.cuts import ANYWHERE, BETWEEN_WORDS, Cuts
from trainbook.errors import DataError


class PlainTokenizer(BaseTokenizer):
    """Base tokens first, then the end of text where there is one, then what a task asked for."""

    is_lossless = True
    cuts: Cuts | None = ANYWHERE

    def __init__(self, num_base: int, with_end_of_text: bool, specials: Iterable[str]) -> None:
        self.num_base = num_base
        self.roles = in_order(specials)
        size = num_base + with_end_of_text
        self.specials = appended(self.roles, num_base if with_end_of_text else None, size)
        self.vocab_size = size + len(own_names(self.roles))

    def encode(self, text: str) -> np.ndarray:
        raise NotImplementedError

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def encode_rest(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self.encode_many(texts)

    def _decode_base(self, ids: np.ndarray) -> str:
        raise NotImplementedError

    def decode(self, ids: Iterable[int]) -> str:
        """Special tokens are shown by their names, where they stand."""
        array = known(ids, self.vocab_size)
        where = np.flatnonzero(array >= self.num_base)
        runs = [self._decode_base(run[run < self.num_base]) for run in np.split(array, where)]
        names = [self.specials.names[int(special)] for special in array[where]]
        return "".join([runs[0], *(part for pair in zip(names, runs[1:], strict=True) for part in pair)])

    def _content(self) -> dict[str, Any]:
        raise NotImplementedError

    def _files(self) -> dict[str, str]:
        asked = {"specials": list(self.roles)} if self.roles else {}
        return {FILE_NAME: json.dumps(self._content() | asked, ensure_ascii=True)}

    def _add_specials(self, library_tokenizer: Any) -> Any:
        """In the order of their ids: the package numbers them as they come."""
        names = self.specials.names
        library_tokenizer.add_special_tokens(
            [the_library().AddedToken(names[number], special=True, normalized=False) for number in sorted(names)]
        )
        return library_tokenizer


class ByteTokenizer(PlainTokenizer):
    """The 256 bytes of UTF-8 and an end of text."""

    def __init__(self, specials: Iterable[str] = ()) -> None:
        super().__init__(256, True, specials)

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8).astype(np.int64)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        contents = [text.encode("utf-8", "replace") for text in texts]
        ids = np.frombuffer(b"".join(contents), dtype=np.uint8).astype(np.int64)
        ends = list(accumulate(map(len, contents), initial=0))
        return [ids[begin:end] for begin, end in pairwise(ends)]

    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        results = []
        for text in texts:
            ids = self.encode(text)
            # Every byte that does not go on with a character begins the next one.
            results.append((ids, np.cumsum((ids & 0xC0) != 0x80) - 1))
        return results

    def joined_words(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes beyond ASCII are parts of characters, most of them letters: all count as such."""
        letters = np.zeros(self.vocab_size, dtype=bool)
        letters[:256] = [byte >= 128 or chr(byte).isalnum() for byte in range(256)]
        return letters, letters.copy()

    def _decode_base(self, ids: np.ndarray) -> str:
        return ids.astype(np.uint8).tobytes().decode("utf-8", "replace")

    def _content(self) -> dict[str, Any]:
        return {"trainbook": "byte"}

    def to_library(self) -> Any:
        library = the_library()
        vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
        tokenizer = library.Tokenizer(library.models.BPE(vocabulary, []))
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        return self._add_specials(tokenizer)


class CharTokenizer(PlainTokenizer):
    """One token a character of a fixed alphabet, in the order of their code points."""

    def __init__(self, characters: Iterable[str], with_end_of_text: bool, specials: Iterable[str] = ()) -> None:
        self.characters = "".join(sorted(set(characters)))
        super().__init__(len(self.characters), with_end_of_text, specials)
        self._code_points = np.array([ord(character) for character in self.characters], dtype="<u4")

    def encode(self, text: str) -> np.ndarray:
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        ids = np.searchsorted(self._code_points, points)
        is_known = ids < len(self._code_points)
        is_known[is_known] = self._code_points[ids[is_known]] == points[is_known]
        if not is_known.all():
            unknown = self.special("unknown")
            if unknown is None:
                character = text[int(np.argmin(is_known))]
                raise DataError(
                    f"the char tokenizer has no token for {character!r} (U+{ord(character):04X}): it has only the "
                    f"{len(self.characters)} characters of its training data."
                )
            ids[~is_known] = unknown
        return ids.astype(np.int64)

    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(self.encode(text), np.arange(len(text))) for text in texts]

    def joined_words(self) -> tuple[np.ndarray, np.ndarray]:
        letters = np.zeros(self.vocab_size, dtype=bool)
        letters[: self.num_base] = [character.isalnum() for character in self.characters]
        return letters, letters.copy()

    def _decode_base(self, ids: np.ndarray) -> str:
        return self._code_points[ids].tobytes().decode("utf-32-le", "surrogatepass")

    def _content(self) -> dict[str, Any]:
        return {"trainbook": "char", "characters": self.characters, "end_of_text": self.end_of_text is not None}

    def to_library(self) -> Any:
        library = the_library()
        # Half of a character, which no text in UTF-8 can have, is left out.
        vocabulary = {
            character: number
            for number, character in enumerate(self.characters)
            if not 0xD800 <= ord(character) < 0xE000
        }
        unknown = self.special("unknown")
        # The package asks for a token for the unknown; without one in the vocabulary, it refuses as we do.
        name = self.specials.names[unknown] if unknown is not None else "<|unknown|>"
        named = {text: number for number, text in self.specials.names.items()}
        tokenizer = library.Tokenizer(library.models.WordLevel(vocabulary | named, unk_token=name))
        tokenizer.pre_tokenizer = library.pre_tokenizers.Split(library.Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = library.decoders.Fuse()
        return self._add_specials(tokenizer)


class WordTokenizer(PlainTokenizer):
    """One token for each word of a fixed vocabulary, words separated by spaces: for symbols such as phonemes.

    How much blank there was is forgotten. A word that is not there becomes the unknown token.
    """

    is_lossless = False
    cuts = BETWEEN_WORDS

    def __init__(self, words: Iterable[str], with_end_of_text: bool, specials: Iterable[str] = ()) -> None:
        self.words = sorted(set(words))
        self._ids = {word: number for number, word in enumerate(self.words)}
        super().__init__(len(self.words), with_end_of_text, {*specials, "unknown"})

    def encode(self, text: str) -> np.ndarray:
        unknown = self.special("unknown")
        return np.array([self._ids.get(word, unknown) for word in text.split()], dtype=np.int64)

    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        # Blanks are what str.split takes for them, not what a regular expression does.
        return [(self.encode(text), _starts_of_words(text)) for text in texts]

    def joined_words(self) -> tuple[np.ndarray, np.ndarray]:
        nothing = np.zeros(self.vocab_size, dtype=bool)
        return nothing, nothing.copy()

    def decode(self, ids: Iterable[int]) -> str:
        names = self.specials.names
        return " ".join(
            self.words[number] if number < self.num_base else names[number]
            for number in known(ids, self.vocab_size).tolist()
        )

    def _content(self) -> dict[str, Any]:
        return {"trainbook": "word", "words": self.words, "end_of_text": self.end_of_text is not None}

    def to_library(self) -> Any:
        library = the_library()
        unknown = self.special("unknown")
        assert unknown is not None
        named = {text: number for number, text in self.specials.names.items()}
        model = library.models.WordLevel(self._ids | named, unk_token=self.specials.names[unknown])
        tokenizer = library.Tokenizer(model)
        tokenizer.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
        return self._add_specials(tokenizer)


def _starts_of_words(text: str) -> np.ndarray:
    is_blank = np.array([True, *(character.isspace() for character in text)])
    return np.flatnonzero(is_blank[:-1] & ~is_blank[1:])


def byte_characters() -> list[str]:
    """The printable character by which byte-level tokenizers write each byte: itself, or one from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
