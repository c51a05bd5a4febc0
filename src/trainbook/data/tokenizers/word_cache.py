"""Byte-level BPE by a table of words: about three times as fast as the `tokenizers` package on one core.

The package divides a text into words and encodes each by itself. A text repeats its words, so here each different word
is given to the package once, and the text is divided by Python's `re`. That must divide exactly as the package does:

- Of ASCII text, the patterns below are the package's own, letter by letter.
- Beyond ASCII, `\\w`, `\\d` and `\\s` stand for classes of Unicode. A text with a character of which they say something
  else than Unicode's categories, or which this Python's tables do not know yet, is left to the package.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trainbook.data.tokenizers.cuts import GPT2_PATTERN, GPT4_PATTERNS
from trainbook.runs.manifest import usable_cores

MOST_CHARACTERS = 1 << 22  # of the words in the table, which then begins anew
# The package encodes on all cores, this on one: with more cores than these, the package is faster.
MOST_CORES = 3

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_ASCII = {
    GPT2_PATTERN: rf"{_CONTRACTIONS}| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+",
    **{
        pattern: rf"(?i:{_CONTRACTIONS})|[^\r\nA-Za-z0-9]?[A-Za-z]+|{digits}| ?[^\sA-Za-z0-9]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        for pattern, digits in zip(GPT4_PATTERNS, ("[0-9]{1,3}", "[0-9]"), strict=True)
    },
}
_UNICODE = {GPT2_PATTERN: rf"{_CONTRACTIONS}| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]+|_+)+|\s+(?!\S)|\s+"}

EncodeWords = Callable[[Sequence[str]], Sequence[list[int]]]


class WordCache:
    """Encodes texts of which it knows how they are divided into words."""

    def __init__(self, pattern: str, encode_words: EncodeWords) -> None:
        self._ascii = re.compile(_ASCII[pattern], re.ASCII)
        self._unicode = re.compile(_UNICODE[pattern]) if pattern in _UNICODE else None
        self._encode_words = encode_words
        self._ids: dict[str, bytes] = {}  # of each word, as bytes of int64
        self._num_characters = 0
        self._understood: set[str] = set()  # characters beyond ASCII, or kept apart from it

    @classmethod
    def of(cls, content: Mapping[str, Any], encode_words: EncodeWords) -> WordCache | None:
        """For a tokenizer.json; None if its words depend on more than a pattern that is known."""
        pattern = _pattern(content)
        return None if pattern is None or usable_cores() > MOST_CORES else cls(pattern, encode_words)

    def encode(self, text: str) -> np.ndarray | None:
        """The ids; None for a text that the package must divide."""
        division = self._ascii if text.isascii() else self._unicode
        if division is None or not self._understands(text):
            return None
        if self._num_characters > MOST_CHARACTERS:
            self._ids, self._num_characters = {}, 0
        words, known = division.findall(text), self._ids
        new = [word for word in set(words) if word not in known]
        for word, ids in zip(new, self._encode_words(new) if new else (), strict=True):
            known[word] = np.array(ids, dtype=np.int64).tobytes()
        self._num_characters += sum(map(len, new))
        return np.frombuffer(bytearray().join(map(known.__getitem__, words)), dtype=np.int64)

    def _understands(self, text: str) -> bool:
        if text.isascii():
            return True
        new = set(text) - self._understood
        self._understood |= {character for character in new if _is_plain(character)}
        return new <= self._understood


def _is_plain(character: str) -> bool:
    """Whether `re` puts it into the class that its category says."""
    category = unicodedata.category(character)
    if category in ("Cn", "Cs") or "\x1c" <= character <= "\x1f":  # not assigned; `re` takes these four for white space
        return False
    is_letter, is_number = (re.match(pattern, character) is not None for pattern in (r"[^\W\d_]", r"\d"))
    return is_letter == (category[0] == "L") and is_number == (category[0] == "N")


def _pattern(content: Mapping[str, Any]) -> str | None:
    model, added = content.get("model", {}), content.get("added_tokens") or ()
    if model.get("type") != "BPE" or model.get("dropout") or content.get("normalizer") is not None:
        return None
    if any(not token["special"] for token in added):  # these are taken out of a text before it is divided
        return None
    steps = content.get("pre_tokenizer") or {}
    steps = steps["pretokenizers"] if steps.get("type") == "Sequence" else [steps]
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    if len(steps) == 1:
        return GPT2_PATTERN if steps[0].get("use_regex", True) else None
    first, last = steps[0], steps[-1]
    if len(steps) > 2 or first.get("type") != "Split" or last.get("use_regex", True):
        return None
    pattern = first.get("pattern", {}).get("Regex")
    is_isolated = first.get("behavior") == "Isolated" and not first.get("invert")
    return pattern if is_isolated and pattern in _ASCII else None
