"""Random changes of good files: of their bytes, of values inside of JSON, of cells and lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

HOSTILE = "\x1b]0;t\x07\x9b2J\u202e"
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**63,
    -(2**64),
    10**30,
    10**299,
    0.0,
    -0.5,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    " ",
    "NaN",
    "Infinity",
    "1",
    "1e999",
    "null",
    "step",
    "x" * 5000,
    HOSTILE,
    "[bold]x[/]",
    "../../x",
    "/etc/passwd",
    "a\0b",
    "\ud800",
    [],
    {},
    [[]],
    [None],
    [1, "a", {}],
    {"": ""},
    {"a": {"b": [1]}},
    [{}, {}],
    ["x"] * 300,
)
RAW = (
    "9" * 5000,
    "[" * 150 + "]" * 150,
    '{"a":' * 150 + "1" + "}" * 150,
    "1e99999",
    "-",
    "NaN",
    "-Infinity",
    '"\\ud800"',
    '"',
    "]",
    "0x10",
)
BYTES = (
    b"\0",
    b"\xff",
    b"\x1b]0;t\x07",
    b"\r",
    b"\n",
    b"\n\n\n",
    b"\t",
    b'"',
    b"'",
    b",",
    b";",
    b"{",
    b"[",
    b"]",
    b"}",
    b":",
    b": ",
    b"- ",
    b"&a ",
    b"*a",
    b"!!python/object:os.system ",
    b"!!float ",
    b"<<: ",
    b"? ",
    b"|\n",
    b">\n",
    b"%YAML 9.9\n",
    b"---\n",
    b"...\n",
    b"#",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"nan",
    b"1e400",
    b"9" * 400,
    b"[" * 200,
    b"\x80" * 10,
    b"\xff" * 8,
    b"\x00" * 64,
)


def changed_bytes(content: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    found = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8, 30))):
        random.choice(_OF_BYTES)(found, random, others)
    return bytes(found[: 1 << 20])


def _flip(found: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if found:
        found[random.randrange(len(found))] ^= 1 << random.randrange(8)


def _set(found: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if found:
        found[random.randrange(len(found))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _insert(found: bytearray, random: Random, others: Sequence[bytes]) -> None:
    at = random.randint(0, len(found))
    found[at:at] = random.choice(BYTES)


def _replace(found: bytearray, random: Random, others: Sequence[bytes]) -> None:
    at = random.randint(0, len(found))
    new = random.choice(BYTES)
    found[at : at + len(new)] = new


def _delete(found: bytearray, random: Random, others: Sequence[bytes]) -> None:
    at = random.randint(0, len(found))
    del found[at : at + random.choice((1, 2, 4, 16, 200))]


def _repeat(found: bytearray, random: Random, others: Sequence[bytes]) -> None:
    at = random.randint(0, len(found))
    span = found[at : at + random.choice((1, 4, 30, 300))]
    found[at:at] = span * random.choice((1, 2, 20))


def _cut(found: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if random.random() < 0.3:
        del found[random.randint(0, len(found)) :]


def _swap(found: bytearray, random: Random, others: Sequence[bytes]) -> None:
    one, other = random.randint(0, len(found)), random.randint(0, len(found))
    size = random.choice((1, 8, 40))
    found[one : one + size], found[other : other + size] = found[other : other + size], found[one : one + size]


def _splice(found: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if others:
        other = random.choice(others)
        at, begin = random.randint(0, len(found)), random.randint(0, len(other))
        found[at : at + random.choice((0, 50))] = other[begin : begin + random.choice((4, 50, 500))]


_OF_BYTES: tuple[Callable[[bytearray, Random, Sequence[bytes]], None], ...] = (
    _flip,
    _set,
    _insert,
    _replace,
    _delete,
    _repeat,
    _cut,
    _swap,
    _splice,
)


def changed_json(value: Any, random: Random) -> bytes:
    """The JSON of a value in which some parts are others; now and then with a piece that Python would not write."""
    value = json.loads(json.dumps(value))
    for _ in range(random.choice((1, 1, 2, 4))):
        value = _changed_part(value, random, 0.97)
    text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    if random.random() < 0.1:
        text = text.replace("null", random.choice(RAW), 1) if "null" in text else text + random.choice(RAW)
    return text.encode("utf-8", "surrogatepass")


def _changed_part(value: Any, random: Random, deeper: float = 0.85) -> Any:
    """A random place in it gets another value, goes, or comes twice; `deeper`: how often it is not the whole."""
    if isinstance(value, (dict, list)) and value and random.random() < deeper:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = random.choice(keys)
        what = random.random()
        if what < 0.1:
            del value[key]
        elif what < 0.2 and isinstance(value, dict):
            value[random.choice(("", HOSTILE, "step", "kind", "0", "__class__", str(key) + "x"))] = value[key]
        elif what < 0.25 and isinstance(value, list):
            value[key:key] = [value[key]] * random.choice((1, 3, 100))
        else:
            value[key] = _changed_part(value[key], random)
        return value
    return deepcopy(random.choice(VALUES))


def changed_lines(lines: Sequence[Any], random: Random) -> bytes:
    """JSON lines: some of them with other parts, out of order, twice, or no JSON at all."""
    chosen: list[bytes] = [json.dumps(line).encode() for line in lines]
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(chosen))
        what = random.random()
        if what < 0.6:
            chosen[at] = changed_json(lines[at % len(lines)], random)
        elif what < 0.7:
            chosen[at] = changed_bytes(chosen[at], random)
        elif what < 0.8:
            chosen[at:at] = [chosen[at]] * random.choice((1, 3, 40))
        elif what < 0.9:
            random.shuffle(chosen)
        elif len(chosen) > 1:
            del chosen[at]
    return b"\n".join(chosen) + (b"\n" if random.random() < 0.9 else b"")


def changed_cells(rows: Sequence[Sequence[str]], random: Random, separator: str = ",") -> bytes:
    cells = [list(row) for row in rows]
    for _ in range(random.choice((1, 1, 2, 4))):
        row = random.choice(cells)
        what = random.random()
        if what < 0.7 and row:
            value = random.choice(VALUES)
            row[random.randrange(len(row))] = value if isinstance(value, str) else json.dumps(value)
        elif what < 0.8:
            row.append("x")
        elif what < 0.9 and row:
            row.pop()
        else:
            random.shuffle(cells)
    return "\n".join(separator.join(row) for row in cells).encode("utf-8", "surrogatepass")
