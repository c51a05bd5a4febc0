"""What every tokenizer can do."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trainbook.data.tokenizers.cuts import Cuts

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer


# Tokens that stand for no text: a task asks for them by their role, whatever a tokenizer calls them.


END_OF_TEXT = "<|endoftext|>"
NUM_SENTINELS = 100
ROLES = ("pad", "begin", "separator", "mask", "unknown", "sentinels")  # the order in which our own are appended

OWN_NAMES = {role: f"<|{role}|>" for role in ROLES if role != "sentinels"}

# What tokenizers call them, the most specific name first.
KNOWN_NAMES = {
    "pad": (OWN_NAMES["pad"], "[PAD]", "<pad>", "<|padding|>", "<|pad_token|>"),
    "begin": (OWN_NAMES["begin"], "[CLS]", "<cls>", "<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>"),
    "separator": (OWN_NAMES["separator"], "[SEP]", "<sep>", "</s>"),
    "mask": (OWN_NAMES["mask"], "[MASK]", "<mask>"),
    "unknown": (OWN_NAMES["unknown"], "[UNK]", "<unk>"),
    "end": (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<|im_end|>", "[SEP]"),
}
SENTINEL_NAMES = ("<|sentinel_{}|>", "<extra_id_{}>")
# Where a tokenizer_config.json or special_tokens_map.json names them.
SETTINGS = {
    "pad": ("pad_token",),
    "begin": ("cls_token", "bos_token"),
    "separator": ("sep_token",),
    "mask": ("mask_token",),
    "unknown": ("unk_token",),
    "end": ("eos_token",),
}


@dataclass(frozen=True)
class SpecialTokens:
    ids: Mapping[str, int] = field(default_factory=dict)  # by role, sentinels apart
    sentinels: tuple[int, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)  # the text of each

    def has(self, role: str) -> bool:
        return bool(self.sentinels) if role == "sentinels" else role in self.ids


def in_order(roles: Iterable[str]) -> tuple[str, ...]:
    asked = set(roles)
    if unknown := asked - set(ROLES):
        raise ValueError(f"roles must be of {ROLES}, but got {sorted(unknown)}")
    return tuple(role for role in ROLES if role in asked)


def own_names(roles: Iterable[str]) -> list[str]:
    """The tokens that our own tokenizers append for these roles."""
    names: list[str] = []
    for role in in_order(roles):
        names += (
            [SENTINEL_NAMES[0].format(n) for n in range(NUM_SENTINELS)] if role == "sentinels" else [OWN_NAMES[role]]
        )
    return names


def appended(roles: Iterable[str], end_of_text: int | None, base_size: int) -> SpecialTokens:
    """Those of a tokenizer whose other tokens are numbered up to the base size."""
    vocabulary = {name: base_size + number for number, name in enumerate(own_names(roles))}
    if end_of_text is not None:
        vocabulary[END_OF_TEXT] = end_of_text
    return found(vocabulary, {})


def found(vocabulary: Mapping[str, int], settings: Mapping[str, Any], marked: Iterable[int] = ()) -> SpecialTokens:
    """Those of a vocabulary: as its settings name them, or else by the names that are usual. `marked` are further
    tokens that the tokenizer itself calls special, such as the marks around a turn of a conversation."""
    ids: dict[str, int] = {}
    for role, usual in KNOWN_NAMES.items():
        stated = [token_text(settings.get(key)) for key in SETTINGS[role]]
        name = next((name for name in (*stated, *usual) if name in vocabulary), None)
        if name is not None:
            ids[role] = vocabulary[name]
    sentinels = next(filter(None, (_numbered(vocabulary, pattern) for pattern in SENTINEL_NAMES)), ())
    special = {*ids.values(), *sentinels, *marked}
    return SpecialTokens(ids, sentinels, {number: name for name, number in vocabulary.items() if number in special})


def token_text(setting: Any) -> str | None:
    """A token as settings give it: its text, or an object with its text among other things."""
    content = setting.get("content") if isinstance(setting, Mapping) else setting
    return content if isinstance(content, str) else None


def _numbered(vocabulary: Mapping[str, int], pattern: str) -> tuple[int, ...]:
    ids: list[int] = []
    while (number := vocabulary.get(pattern.format(len(ids)))) is not None:
        ids.append(number)
    return tuple(ids)


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
