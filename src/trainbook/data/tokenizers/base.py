"""What every tokenizer can do."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trainbook.data.tokenizers.cuts import Cuts
from trainbook.data.tokenizers.special import ROLES, SpecialTokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

FILE_NAME = "tokenizer.json"


class Tokenizer(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def end_of_text(self) -> int | None: ...

    @property
    def sentinels(self) -> tuple[int, ...]:
        """Tokens that stand for a part of a text that was taken out, the first one first."""
        ...

    @property
    def special_names(self) -> Mapping[int, str]:
        """The text of each token that stands for no text."""
        ...

    @property
    def chat_template(self) -> str | None:
        """How a conversation is written as one text, as a Jinja template, where the tokenizer's folder says so."""
        ...

    @property
    def is_lossless(self) -> bool:
        """Decoding gives back the very text that was encoded, line breaks included."""
        ...

    @property
    def cuts(self) -> Cuts | None:
        """Where a text may be cut so that its pieces encode to the same tokens as the whole; None: nowhere."""
        ...

    @property
    def fingerprint(self) -> str: ...

    def special(self, role: str) -> int | None:
        """The token with this role: pad, begin, separator, mask or unknown."""
        ...

    @property
    def padding(self) -> int:
        """The token that fills rows up: the one for it, else the end of text. What is padding, a mask says."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Token ids (int64) of the text alone, without any special token, whatever the text says."""
        ...

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]: ...

    def encode_rest(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The same of pieces that go on with a text which was cut before them."""
        ...

    def encode_with_starts(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each text the ids, and where each token begins: the index of its first character. A blank before a word is
        not counted to it, even if one token holds both."""
        ...

    def joined_words(self) -> tuple[np.ndarray, np.ndarray]:
        """Two flags for each id. A token goes on with the word of the one before it if the first flag of this one is
        set and the second flag of the one before."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens; special tokens are shown by their names."""
        ...

    def decode_plain(self, ids: Iterable[int]) -> str:
        """The text of the tokens without special tokens: what a reader or a metric is given. An unknown word stays: it
        stands for text."""
        ...

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tokenizer.json into the folder: the same tokenizer always writes the same bytes."""
        ...

    def to_library(self) -> LibraryTokenizer:
        """A tokenizer of the `tokenizers` package that gives the same ids, for others to load."""
        ...


class BaseTokenizer:
    """Saving and identity follow from canonical texts; roles from the special tokens."""

    specials: SpecialTokens

    def _files(self) -> dict[str, str]:
        """The name and text of each file that is saved."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256("".join(self._files().values()).encode("utf-8")).hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, text in self._files().items():
            (Path(folder) / name).write_bytes(text.encode("utf-8"))

    def decode(self, ids: Iterable[int]) -> str:
        raise NotImplementedError

    def decode_plain(self, ids: Iterable[int]) -> str:
        left_out = self.special_names.keys() - {self.special("unknown")}
        return self.decode(number for number in map(int, ids) if number not in left_out)

    @property
    def end_of_text(self) -> int | None:
        return self.specials.ids.get("end")

    @property
    def sentinels(self) -> tuple[int, ...]:
        return self.specials.sentinels

    @property
    def special_names(self) -> Mapping[int, str]:
        return self.specials.names

    @property
    def chat_template(self) -> str | None:
        return None

    @property
    def padding(self) -> int:
        pad = self.special("pad")
        return pad if pad is not None else self.end_of_text or 0

    def special(self, role: str) -> int | None:
        if role not in ROLES or role == "sentinels":
            raise ValueError(f"role must be one of {ROLES[:-1]}, but got {role!r}")
        return self.specials.ids.get(role)


def known(ids: Iterable[int], vocab_size: int) -> np.ndarray:
    """Ids that stand for a token: a model's table may have padding rows beyond the vocabulary, which say nothing."""
    array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64)
    return array[(array >= 0) & (array < vocab_size)]


def the_library() -> Any:
    # Said before the first use, or every later fork prints a warning about its threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    import tokenizers

    return tokenizers
