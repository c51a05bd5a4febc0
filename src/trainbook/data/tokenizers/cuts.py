"""Where a long text may be cut so that its pieces encode to the same tokens as the whole.

A tokenizer of the `tokenizers` package normalizes a text, divides it into words and encodes each word by itself. So a
cut between two words is safe if the normalizer treats both sides alone and the pre-tokenizer always divides there:

- A cut lies behind a letter or digit and before white space or punctuation, all of them characters whose Unicode class
  never changed. No normalizer of the package joins these, and no grapheme or composition spans them.
- The pre-tokenizers and patterns below divide there and look no further back than the word itself. Those of
  byte-level BPE also divide between a letter and a digit, which is where base64 and the like can be cut.
- A BPE without words (Llama 2, Gemma) merges across a cut only if some token contains the two characters side by side.
- No added token contains the two characters side by side, and none takes white space behind itself there.
- What a tokenizer puts before the beginning of a text is not put before the pieces that follow (`rest`).

What this does not know, such as a pattern of the user's own, is cut where a test shows the cut to make no difference:
the text around each cut is encoded in one and in two. The others are tested in the same way, to be sure twice.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPACE, WHITE = " ", " \t\n\r"
PUNCTUATION = ',.;:!?()"。，、；：？！（）「」'  # no apostrophe, which some patterns join with the letters around it
LETTERS = "A-Za-z0-9À-ÖØ-öø-ÿΑ-ΡΣ-Ωα-ωА-яĀ-ňぁ-ゖァ-ヺ一-龥가-힣"
WINDOW = 512  # characters on each side of a cut that are encoded to test it
ATTEMPTS = 64  # cuts that are tested before more text is read

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4_PATTERNS = tuple(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*" + _END
    for digits in (r"\p{N}{1,3}", r"\p{N}")  # Llama 3 and GPT-4; Qwen 2
)
# Patterns that end a word behind a letter or digit wherever white space or punctuation follows.
KNOWN_PATTERNS = {
    GPT2_PATTERN,
    *GPT4_PATTERNS,
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"{_CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _END,  # GPT-4o
}
_LOCAL_NORMALIZERS = {
    *("Lowercase", "StripAccents", "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled")
}
_LOCAL_SPLITTERS = {"Digits", "Punctuation"}  # by the class of each character alone

Joined = Callable[[str, str], bool]
Test = Callable[[str, int], bool]


@dataclass(frozen=True)
class Cuts:
    """Places between two characters."""

    pattern: re.Pattern[str]  # of no width; looks one character ahead, so that it never matches at the end
    joined: Joined | None = None  # two characters between which there is no place nevertheless
    test: Test | None = None  # of a place that is left

    def after(self, text: str, begin: int) -> int | None:
        """The first place from `begin` on."""
        attempts = 0
        for found in self.pattern.finditer(text, begin):
            place = found.start()
            if self.joined is not None and self.joined(text[place - 1], text[place]):
                continue
            if self.test is None or self.test(text, place):
                return place
            attempts += 1
            if attempts == ATTEMPTS:
                break
        return None


ANYWHERE = Cuts(re.compile(r"(?s)(?<=.)(?=.)"))
BETWEEN_WORDS = Cuts(re.compile(r"(?<=\S)(?=\s)"))


class CannotCut(Exception):
    """A text that goes on for too long without a place to cut it."""


def in_pieces(chunks: Iterable[str], cuts: Cuts | None, length: int, longest: int | None = None) -> Iterator[str]:
    """A text in pieces of at least this length, cut nowhere else than allowed."""
    waiting = ""
    for chunk in chunks:
        waiting += chunk
        begin = 0
        while cuts is not None and (place := cuts.after(waiting, begin + length)) is not None:
            yield waiting[begin:place]
            begin = place
        waiting = waiting[begin:]
        if longest is not None and len(waiting) > longest:
            raise CannotCut(f"{len(waiting):,} characters without a place to cut")
    if waiting:
        yield waiting


def derive_cuts(
    content: Mapping[str, Any], encode: Callable[[Sequence[str]], Sequence[list[int]]]
) -> tuple[Cuts | None, dict[str, Any] | None]:
    """Where texts may be cut for a tokenizer.json, and the tokenizer for pieces that begin no text where it has to be
    another one. `encode` encodes such pieces."""
    if content["model"].get("dropout"):
        return None, None
    extracted = [token for token in content.get("added_tokens") or () if not token["special"]]
    normalizers, splitters = _flat(content.get("normalizer")), _flat(content.get("pre_tokenizer"))
    rest, adds = _without_prefix(content)
    followers, is_known = _followers(normalizers, splitters)
    parts_digits = is_known and not adds and any(map(_parts_digits, splitters))
    before_digits = "|(?<=[A-Za-z])(?=[0-9])" if parts_digits else ""
    if adds and extracted:  # it is put before the text behind each added token as well
        if any(step["type"] == "Prepend" for step in normalizers):
            return None, None
        rest, followers = None, SPACE if SPACE in followers else ""
    if followers:
        before = f"(?<=[{LETTERS}])(?=[{re.escape(followers)}]){before_digits}"
        # A pattern that is not known may join a word with the blank behind it.
        pattern = re.compile(before if is_known or adds else f"{before}|(?<=[{WHITE}])(?=[{LETTERS}])")
        joined = _joined_by_added(extracted)
    elif pairs := _pairs_within_tokens(content, normalizers, splitters):
        pattern, joined = re.compile(r"(?s)(?<=.)(?=.)"), _either(_joined_by_added(extracted), pairs)
    else:
        return None, None

    def is_safe(text: str, place: int) -> bool:
        before, behind = text[max(place - WINDOW, 0) : place], text[place : place + WINDOW]
        together, left, right = encode([before + behind, before, behind])
        return together == left + right

    return Cuts(pattern, joined, is_safe), rest


def _followers(normalizers: Sequence[Any], splitters: Sequence[Any]) -> tuple[str, bool]:
    """Before which characters a word always ends, and whether that is known or worth trying."""
    known = all(_is_local(step) for step in normalizers)
    found: set[str] = set()
    for step in splitters:
        kind = step["type"]
        if kind == "ByteLevel":
            found |= set(WHITE + PUNCTUATION) if step.get("use_regex", True) else set()
        elif kind in ("BertPreTokenizer", "Whitespace"):
            found |= set(WHITE + PUNCTUATION)
        elif kind == "WhitespaceSplit":
            found |= set(WHITE)
        elif kind == "Metaspace":
            found |= set(SPACE) if step.get("split", True) else set()
        elif kind == "Split" and step["pattern"].get("Regex") in KNOWN_PATTERNS:
            found |= set(WHITE + PUNCTUATION)
        elif kind == "Split" and _is_replaced(step["pattern"].get("String"), normalizers):
            pass
        elif kind not in _LOCAL_SPLITTERS:
            known = False
    if not known:
        return (WHITE if splitters else ""), False
    return "".join(sorted(found)), True


def _parts_digits(step: Any) -> bool:
    """Whether a word always ends between a letter and a digit."""
    if step["type"] == "ByteLevel":
        return step.get("use_regex", True)
    return step["type"] == "Split" and step["pattern"].get("Regex") in KNOWN_PATTERNS


def _is_local(step: Any) -> bool:
    """Whether a normalizer treats the two sides of a cut each by itself."""
    if step["type"] == "Replace":
        pattern = step["pattern"]
        return (
            len(pattern.get("String", "")) == 1 or re.fullmatch(r" (\{2,\}|\+)", pattern.get("Regex", "")) is not None
        )
    return step["type"] in _LOCAL_NORMALIZERS or step["type"] in ("Prepend", "Strip")


def _is_replaced(text: str | None, normalizers: Sequence[Any]) -> bool:
    """A pattern that nothing can match, since the normalizer has put something else in its place (Gemma)."""
    return any(step["type"] == "Replace" and step["pattern"].get("String") == text for step in normalizers)


def _without_prefix(content: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The same tokenizer, which does nothing to the beginning of a text; None where it does nothing anyway."""
    rest = copy.deepcopy(dict(content))
    adds = strips = False
    for step in _flat(rest.get("pre_tokenizer")):
        if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
            step["add_prefix_space"], adds = False, True
        elif step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            step["prepend_scheme"], adds = "never", True
    for step in _flat(rest.get("normalizer")):
        if step["type"] == "Strip" and step.get("strip_left"):
            step["strip_left"], strips = False, True
        elif step["type"] == "Prepend":
            adds = True
    if adds:
        rest["normalizer"] = _without(rest.get("normalizer"), "Prepend")
    return (rest if adds or strips else None), adds


def _without(step: Any, kind: str) -> Any:
    if step is None or step["type"] == kind:
        return None
    if step["type"] == "Sequence":
        return {**step, "normalizers": [each for each in step["normalizers"] if _without(each, kind) is not None]}
    return step


def _flat(step: Any) -> list[Any]:
    """The steps of a normalizer or a pre-tokenizer, in order."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [each for part in step.get("normalizers") or step.get("pretokenizers") or () for each in _flat(part)]
    return [step]


def _joined_by_added(tokens: Sequence[Mapping[str, Any]]) -> Joined:
    """Whether an added token may contain two characters side by side, or care for what is beside it there."""
    pairs: set[tuple[str, str]] = set()
    lasts: set[str] = set()
    firsts: set[str] = set()
    for token in tokens:
        text = token["content"].lower().replace("▁", " ")
        pairs.update(itertools.pairwise(text))
        if token["rstrip"] or token["single_word"]:
            lasts.add(text[-1:])
        if token["lstrip"] or token["single_word"]:
            firsts.add(text[:1])

    def joined(one: str, other: str) -> bool:
        one, other = one.lower(), other.lower()
        # A token that takes white space before itself may take it from both sides of a cut.
        return (one, other) in pairs or one in lasts or other in firsts or (bool(firsts) and one.isspace())

    return joined


def _pairs_within_tokens(
    content: Mapping[str, Any], normalizers: Sequence[Any], splitters: Sequence[Any]
) -> Joined | None:
    """Of a BPE that takes a whole text for one word: whether a token has two characters side by side."""
    model = content["model"]
    words = [step for step in splitters if step["type"] != "Metaspace" and step["type"] != "Split"]
    changes = [step for step in normalizers if step["type"] not in ("Prepend", "Replace") or not _is_local(step)]
    if model["type"] != "BPE" or words or changes:
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    vocabulary = model["vocab"]
    pairs = {pair for token in vocabulary for pair in itertools.pairwise(token)}
    replaced = {
        step["pattern"]["String"]: step["content"]
        for step in normalizers
        if step["type"] == "Replace" and "String" in step["pattern"]
    }
    if any(len(other) != 1 for other in replaced.values()) or any(
        step["type"] == "Replace" and "String" not in step["pattern"] for step in normalizers
    ):
        return None
    for step in splitters:
        if step["type"] == "Metaspace":
            replaced[SPACE] = step["replacement"]

    def joined(one: str, other: str) -> bool:
        one, other = replaced.get(one, one), replaced.get(other, other)
        # Unknown characters side by side may become one token.
        return one not in vocabulary or other not in vocabulary or (one, other) in pairs

    return joined


def _either(one: Joined, other: Joined) -> Joined:
    return lambda before, behind: one(before, behind) or other(before, behind)
