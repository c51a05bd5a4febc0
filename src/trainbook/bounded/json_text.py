"""JSON, with limits on depth, on the number of values and on the digits of a whole number.

Python's reader takes NaN and Infinity too, as several tools write them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from trainbook.bounded.files import MOST_BYTES, read_bytes
from trainbook.errors import BeyondBounds

MOST_DEPTH = 100
MOST_VALUES = 4_000_000  # the worst kind takes about 200 bytes each
MOST_DIGITS = 300  # such a number can still be a float

_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_TOO_MANY_DIGITS = b"0" * (MOST_DIGITS + 1)
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


def loads(text: str | bytes, where: str = "", *, most_values: int = MOST_VALUES) -> Any:
    """What a JSON text says. Beyond a limit: BeyondBounds, which begins with `where`; what is no JSON: ValueError."""
    if not isinstance(text, str):
        text = text.decode("utf-8-sig")
    _must_be_bounded(text, where, most_values)
    try:
        return _DECODER.decode(text)
    except BeyondBounds as error:
        raise BeyondBounds(_placed(where, str(error))) from None
    except RecursionError:  # called from deep down
        raise BeyondBounds(_placed(where, "must be nested less deeply to be read from here.")) from None


def read(path: str | os.PathLike[str], *, most: int = MOST_BYTES) -> Any:
    """The same of a file; a file that is missing or cannot be read: OSError."""
    return loads(read_bytes(path, most), os.fspath(path))


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The same; empty where there is no file that can be read, or no object in it."""
    try:
        found = read(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def load_lines(lines: Sequence[bytes]) -> list[Any] | None:
    """What each line says, all of them parsed at once: twice as fast as one by one. None if that is not possible, be it
    for one line that is no JSON, or if it could be beyond a limit."""
    if max(map(bytes.count, lines, repeat(b"{"))) + max(map(bytes.count, lines, repeat(b"["))) > MOST_DEPTH:
        return None
    between = os.urandom(12).hex()  # no line can have it, so none can pass for two, nor two for one
    content = f',"{between}",'.encode().join(lines)
    if _TOO_MANY_DIGITS in content.translate(_DIGITS_AS_ZEROS):
        return None
    try:
        found = json.loads(f"[{content.decode('utf-8')}]")
    except (ValueError, RecursionError):
        return None
    is_aligned = len(found) == 2 * len(lines) - 1 and all(mark == between for mark in found[1::2])
    return found[::2] if is_aligned else None


def _must_be_bounded(text: str, where: str, most_values: int) -> None:
    openings = text.count("[") + text.count("{")
    if openings <= MOST_DEPTH and len(text) <= most_values:  # as almost all lines of logs
        return
    bare = _STRING.sub("", text)  # what stands in strings is no structure
    values = bare.count("[") + bare.count("{") + bare.count(",") + bare.count(":")
    if values > most_values:
        raise BeyondBounds(_placed(where, f"must have at most {most_values:,} values, but has {values:,}."))
    if (depth := _depth(bare)) > MOST_DEPTH:
        raise BeyondBounds(_placed(where, f"must be nested at most {MOST_DEPTH} deep, but is {depth:,} deep."))


def _depth(bare: str) -> int:
    deepest = depth = 0
    for bracket in bare.encode("ascii", "ignore").translate(None, _OTHER_BYTES):
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


_OTHER_BYTES = bytes(set(range(256)) - set(b"[]{}"))


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise BeyondBounds(f"a number must have at most {MOST_DIGITS} digits, but has {len(digits.lstrip('-')):,}.")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_whole_number)


def _placed(where: str, message: str) -> str:
    return f"{where}: {message}" if where else message
