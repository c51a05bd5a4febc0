"""Values of fields: what they are called in messages, and how they become texts, classes and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainbook.errors import DataError


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds = {list: "a list", tuple: "a list", dict: "an object", str: "a string", int: "a number", float: "a number"}
    return kinds.get(type(value)) or f"a value of type {type(value).__name__}"


def is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_number(value: Any) -> bool:
    if isinstance(value, str):
        try:
            return math.isfinite(float(value))
        except ValueError:
            return False
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def text_of(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"the field '{field}' must be a string, but got {kind_of(value)}.")
    if value.isascii():
        return value
    # JSON can spell half of a surrogate pair, which no encoding can write.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def class_of(value: Any, field: str) -> str:
    """The name of a class: a string without blanks around it, a whole number, true or false."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    if isinstance(value, str) and value.strip():
        return text_of(value, field).strip()
    shown = repr(value) if isinstance(value, str | float) else kind_of(value)
    hint = " Several classes a record are training.task=classify_many." if is_list(value) else ""
    hint = " A number to predict is training.task=regress." if isinstance(value, float) else hint
    raise DataError(f"the field '{field}' must be a class (a name or a whole number), but got {shown}.{hint}")


def classes_of(value: Any, field: str, separator: str) -> tuple[str, ...]:
    """The names in a list, or in a string with a separator between them; none is an answer too."""
    if isinstance(value, str):
        if separator == "," and "|" in value:
            raise DataError(
                f"the field '{field}' must separate its classes by commas, as the first records do, but got {value!r}."
            )
        value = [part for part in value.split(separator) if part.strip()]
    if not is_list(value):
        raise DataError(
            f"the field '{field}' must be a list of classes, or a string with '|' or ',' between them, "
            f"but got {kind_of(value)}."
        )
    return tuple(sorted({class_of(part, field) for part in value}))


def number_of(value: Any, field: str) -> float:
    if not is_number(value):
        shown = repr(value) if isinstance(value, str | float) else kind_of(value)
        raise DataError(f"the field '{field}' must be a finite number, but got {shown}.")
    return float(value)


def in_order(names: set[str]) -> tuple[str, ...]:
    """Sorted as numbers where all are whole numbers, as text otherwise."""
    if all(name.lstrip("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
