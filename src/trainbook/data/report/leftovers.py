"""What conversions leave in a text: characters that were decoded wrongly, and the markup of pages and papers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MOST_CHARACTERS = 1 << 20  # of a document that are looked at
MAX_EXAMPLES = 3

# UTF-8 that was read as Windows-1252 or Latin-1: each byte became a character of its own. A second byte (0x80 to 0xBF)
# is one of these in either of the two.
_SYMBOL = "\x80-\x9f\u00a1-\u00aa\u00ac-\u00ba\u00bc-\u00bf\u20ac\u0192"
_SYMBOL += "\u2020\u2021\u02c6\u2030\u0160\u0152\u017d\u2022\u02dc\u2122\u0161\u0153\u017e\u0178"
# These may also stand behind a letter.
_QUOTE = "\u00a0\u00ab\u00bb\u201a\u201e\u2026\u2039\u2018\u2019\u201c\u201d\u2013\u2014\u203a"
_CONTINUED = f"[{_SYMBOL}{_QUOTE}]"
_MOJIBAKE = re.compile(
    f"[ÃÂÄÅ][{_SYMBOL}]|(?<![A-ZÀ-Þ])[ÃÂ][{_QUOTE}]"  # accented letters; not the end of "AMANHÃ" in quotation marks
    f"|â{_CONTINUED}{_CONTINUED}"  # quotation marks, dashes, dots
    f"|ï»¿|(?:[ÐÑ]{_CONTINUED}){{2}}|(?:[ÎÏ]{_CONTINUED}){{2}}|(?:[ØÙ]{_CONTINUED}){{2}}"  # other alphabets
    f"|(?:[ã-é]{_CONTINUED}{_CONTINUED}){{2}}|ð(?:Ÿ|\x9f){_CONTINUED}{_CONTINUED}"  # Chinese, Japanese; emoji
)

_TAGS = (
    "a|abbr|b|body|br|button|center|code|dd|div|dl|dt|em|font|footer|form|h[1-6]|head|header|hr|html|i|iframe|img|input"
)
_TAGS += (
    "|label|li|link|meta|nav|ol|option|p|pre|script|section|select|small|span|strong|style|sub|sup|table|tbody|td|th"
)
_TAGS += "|thead|title|tr|u|ul"
_ENTITIES = "amp|lt|gt|quot|apos|nbsp|ndash|mdash|hellip|lsquo|rsquo|ldquo|rdquo|laquo|raquo|bull|middot|copy|reg|trade"
_ENTITIES += "|deg|euro|times|[aeiouAEIOU](?:acute|grave|circ|uml)|szlig|[cC]cedil|[nN]tilde"
MARKUP: dict[str, re.Pattern[str]] = {
    "HTML tags": re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]*)?/?>", re.IGNORECASE),
    "HTML entities": re.compile(rf"&(?:{_ENTITIES}|#\d{{2,6}}|#x[0-9a-fA-F]{{2,5}});"),
    "Markdown": re.compile(
        r"^\#{2,6} \S|!?\[[^\]\n]+\]\((?:https?://|/|\#|\.)[^)\n]*\)|^```|(?<!\w)\*\*[^\s*][^*\n]*\*\*(?!\w)"
        r"|^\|?(?: *:?-{3,}:? *\|)+",  # a heading of one # may as well be a comment in code
        re.MULTILINE,
    ),
    "LaTeX": re.compile(
        r"\\(?:begin|end|section|subsection|chapter|cite[tp]?|ref|label|textbf|textit|emph|frac|sqrt|usepackage|mathbb|"
        r"mathrm|mathcal|footnote|caption)\*?\s*[\[{]|\$[^$\n]{0,200}\\[A-Za-z]+[^$\n]{0,200}\$"
    ),
}


def describe_leftovers(texts: Sequence[str], places: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of each kind, how many documents have it, and where; of wrongly decoded text also what it was meant to be."""
    found: dict[str, dict[str, Any]] = {}
    for name, pattern in {"mojibake": _MOJIBAKE, **MARKUP}.items():
        examples, count = [], 0
        for text, place in zip(texts, places, strict=True):
            if name == "mojibake" and text.isascii():
                continue
            if match := pattern.search(text, 0, MOST_CHARACTERS):
                count += 1
                if len(examples) < MAX_EXAMPLES:
                    example = {"place": place, "excerpt": match.group()[:60]}
                    examples.append({**example, "meant": repaired(match.group())} if name == "mojibake" else example)
        found[name] = {"documents": count, "examples": examples}
    return found


def repaired(text: str) -> str | None:
    """Wrongly decoded text as it was meant; None where it cannot be told."""
    try:
        # Windows-1252 has no characters for five bytes; programs then take those of Latin-1.
        raw = b"".join(_byte(character) for character in text)
        return raw.decode("utf-8").removeprefix("\ufeff") or None
    except (UnicodeEncodeError, UnicodeDecodeError):
        return None


def _byte(character: str) -> bytes:
    try:
        return character.encode("cp1252")
    except UnicodeEncodeError:
        return character.encode("latin-1")
