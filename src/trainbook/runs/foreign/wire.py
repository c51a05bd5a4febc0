"""The wire format of protocol buffers: fields by number, without the package or a schema."""

from __future__ import annotations

import struct

Value = int | bytes


class Torn(Exception):
    """The bytes end inside a field, or are no message."""


class Message:
    """Values by field number: varints as integers; strings, messages, doubles and floats as their bytes."""

    def __init__(self, content: bytes) -> None:
        self.fields = _fields(content)

    def texts(self, number: int) -> list[bytes]:
        """Of a field that may be there several times."""
        return [value for value in self.fields.get(number, ()) if isinstance(value, bytes)]

    def messages(self, number: int) -> list[Message]:
        return [Message(value) for value in self.texts(number)]

    def bytes(self, number: int) -> bytes:
        """Of a field that is there once; empty if it is not."""
        found = self.texts(number)
        return found[-1] if found else b""

    def message(self, number: int) -> Message:
        return Message(self.bytes(number))

    def text(self, number: int) -> str:
        return self.bytes(number).decode("utf-8", errors="replace")

    def integer(self, number: int) -> int:
        """Of a signed 64-bit field; 0 if it is not there, as the format has it."""
        found = [value for value in self.fields.get(number, ()) if isinstance(value, int)]
        value = found[-1] if found else 0
        return value - (1 << 64) if value >= 1 << 63 else value


def doubles(value: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(value) // 8}d", value[: len(value) // 8 * 8])


def floats(value: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(value) // 4}f", value[: len(value) // 4 * 4])


def _fields(content: bytes) -> dict[int, list[Value]]:
    found: dict[int, list[Value]] = {}
    at, end = 0, len(content)
    while at < end:
        key, at = _varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(content, at)
            found.setdefault(number, []).append(value)
            continue
        if kind == 2:
            size, at = _varint(content, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Torn
        if at + size > end:
            raise Torn
        found.setdefault(number, []).append(content[at : at + size])
        at += size
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    if at < len(content) and content[at] < 0x80:  # most are of one byte
        return content[at], at + 1
    value = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise Torn
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
