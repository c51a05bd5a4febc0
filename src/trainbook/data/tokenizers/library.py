"""Tokenizers of the `tokenizers` package: our own BPE, or one that the user brings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from trainbook.bounded import json_text
from trainbook.data.tokenizers.base import FILE_NAME, SETTINGS, BaseTokenizer, found, known, the_library, token_text
from trainbook.data.tokenizers.cuts import Cuts, derive_cuts
from trainbook.data.tokenizers.plain import byte_characters
from trainbook.data.tokenizers.word_cache import WordCache
from trainbook.errors import DataError

SETTINGS_FILE = "tokenizer_config.json"


class LibraryBackedTokenizer(BaseTokenizer):
    """`settings` are what a tokenizer_config.json beside it says; what matters here is saved with it."""

    def __init__(self, library_tokenizer: Any, settings: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = library_tokenizer
        # Saved as it came; the switches below are for encoding and would not survive serialization anyway.
        self._json: str = library_tokenizer.to_str()
        self._settings = _relevant(settings or {})
        _for_text_alone(self._tokenizer)
        self._rest = self._tokenizer
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        # Ids may have gaps, so the largest one decides how many rows a model needs.
        self.vocab_size: int = max(ids.values()) + 1
        added = self._tokenizer.get_added_tokens_decoder()
        marked = (number for number, token in added.items() if token.special)
        self.specials = found(ids, self._settings, marked)
        self.is_lossless = self._gives_back("One  two,\n\n\tthree é.\n")

    def _gives_back(self, text: str) -> bool:
        try:
            return self.decode(self.encode(text)) == text
        except DataError:
            return False

    @property
    def chat_template(self) -> str | None:
        return self._settings.get("chat_template")

    def encode(self, text: str) -> np.ndarray:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self._words is None:
            return [np.array(ids, dtype=np.int64) for ids in self._library_ids(texts)]
        found = [self._words.encode(text) for text in texts]
        others = iter(self._library_ids([text for text, ids in zip(texts, found, strict=True) if ids is None]))
        return [np.array(next(others), dtype=np.int64) if ids is None else ids for ids in found]

    @cached_property
    def _words(self) -> WordCache | None:
        return WordCache.of(json_text.loads(self._json), self._library_ids)

    def _library_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in _tried(self._tokenizer.encode_batch_fast, texts)] if texts else []

    def encode_rest(self, texts: Sequence[str]) -> list[np.ndarray]:
        assert self.cuts is not None  # which finds out how it is done
        if self._rest is self._tokenizer:
            return self.encode_many(texts)
        return [np.array(ids, dtype=np.int64) for ids in self._rest_ids(texts)]

    @property
    def cuts(self) -> Cuts | None:
        return self._cuts

    @cached_property
    def _cuts(self) -> Cuts | None:
        found, rest = derive_cuts(json_text.loads(self._json), self._rest_ids)
        if rest is not None:
            self._rest = _for_text_alone(the_library().Tokenizer.from_str(json.dumps(rest)))
        return found

    def _rest_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in _tried(self._rest.encode_batch_fast, texts)]

    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        encodings = _tried(self._tokenizer.encode_batch, texts)
        return [
            (
                np.array(encoding.ids, dtype=np.int64),
                np.array([_first_character(text, *offsets) for offsets in encoding.offsets], dtype=np.int64),
            )
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def joined_words(self) -> tuple[np.ndarray, np.ndarray]:
        glued, ends_in_letter = (np.zeros(self.vocab_size, dtype=bool) for _ in range(2))
        flags = _word_flags(json_text.loads(self._json))
        for piece, number in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if number not in self.specials.names:
                glued[number], ends_in_letter[number] = flags(piece)
        return glued, ends_in_letter

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(known(ids, self.vocab_size).tolist(), skip_special_tokens=False)

    def to_library(self) -> Any:
        return the_library().Tokenizer.from_str(self._json)

    def _files(self) -> dict[str, str]:
        files = {FILE_NAME: self._json}
        if self._settings:
            files[SETTINGS_FILE] = json.dumps(self._settings, indent=1, sort_keys=True)
        return files

    def __getstate__(self) -> dict[str, Any]:
        return {"json": self._json, "settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(the_library().Tokenizer.from_str(state["json"]), state["settings"])


def _for_text_alone(tokenizer: Any) -> Any:
    # A document that happens to contain "<|endoftext|>" must not end there.
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _relevant(settings: Mapping[str, Any]) -> dict[str, str]:
    """The text of each special token that settings name, and the template of a conversation."""
    keys = (key for names in SETTINGS.values() for key in names)
    relevant = {key: text for key in keys if (text := token_text(settings.get(key)))}
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default")
    return relevant | ({"chat_template": template} if isinstance(template, str) else {})


def _tried(encode: Callable[..., Any], texts: Sequence[str]) -> Any:
    encodable = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
    try:
        return encode(encodable, add_special_tokens=False)
    except Exception as error:  # the package raises a bare Exception, such as for a word that it has no token for
        raise DataError(f"the tokenizer cannot encode the text: {error}.") from None


def _first_character(text: str, start: int, end: int) -> int:
    """Some tokenizers count the blank before a word to its token and some do not: here, it is never counted."""
    return start + len(text[start:end]) - len(text[start:end].lstrip()) if text[start:end].strip() else start


def _word_flags(content: dict[str, Any]) -> Callable[[str], tuple[bool, bool]]:
    """How to tell from a piece whether it goes on with a word, and whether a word may go on behind it."""
    model = content.get("model", {})
    kinds = set(_types({name: content.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")}))
    prefix, suffix = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")
    if prefix:
        return lambda piece: (piece.startswith(prefix), True)
    if suffix:
        return lambda piece: (_letter(piece[:1]), not piece.endswith(suffix))
    if "ByteLevel" in kinds:
        values = {character: byte for byte, character in enumerate(byte_characters())}

        def of_bytes(piece: str) -> tuple[bool, bool]:
            data = bytes(values.get(character, 32) for character in piece)
            text = data.decode("utf-8", "replace")
            return _letter(text[:1]), _letter(text[-1:])

        return of_bytes
    if model.get("type") == "WordLevel":
        return lambda piece: (False, False)
    # SentencePiece writes the blank before a word as "▁", and bytes that it has no piece for as "<0xE2>".
    return lambda piece: (True, True) if _is_byte(piece) else (_letter(piece[:1]), _letter(piece[-1:]))


def _types(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(node.get("type"), str):
            yield node["type"]
        for child in node.values():
            yield from _types(child)
    elif isinstance(node, list):
        for child in node:
            yield from _types(child)


def _letter(character: str) -> bool:
    """A part of a character, which decodes to a replacement, is counted as one."""
    return character.isalnum() or character == "\N{REPLACEMENT CHARACTER}"


def _is_byte(piece: str) -> bool:
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
