"""Values of fields: what they are called in messages, and how they become texts, classes and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainbook.bounded import json_text
from trainbook.data.sources.records import DataRecord
from trainbook.errors import DataError

LARGEST_NUMBER = 1e18  # of a target: the loss is a sum of squares, of which 32 bits hold up to 3.4e38
DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+")
MOST_DIGITS = 100  # of a class that is still taken for a number when classes are put in order


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
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except (ValueError, OverflowError):  # a whole number may be larger than any float
        return False


def text_of(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"the field '{field}' must be a string, but got {kind_of(value)}.")
    if value.isascii():
        return value
    # JSON can spell half of a surrogate pair, which no encoding can write.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


REGRESSION = " To predict a number, set training.task=regress."


def regression_hint(name: str) -> str:
    """Whole numbers may be classes; of others, few are."""
    return REGRESSION if is_number(name) and not name.lstrip("+-").isdigit() else ""


def class_of(value: Any, field: str) -> str:
    """The name of a class: a string without blanks around it, a whole number, true or false."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    if isinstance(value, str) and value.strip():
        return text_of(value, field).strip()
    shown = repr(value) if isinstance(value, str | float) else kind_of(value)
    hint = " For several classes per record, set training.task=classify_many." if is_list(value) else ""
    hint = REGRESSION if isinstance(value, float) else hint
    raise DataError(f"the field '{field}' must be a class (a name or a whole number), but got {shown}.{hint}")


def classes_of(value: Any, field: str, separator: str) -> tuple[str, ...]:
    """The names in a list, or in a string with a separator between them; none is an answer too."""
    value = listed(value, field)
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


def listed(value: Any, field: str) -> Any:
    """A string that is written as a list in JSON, as that list; any other value as it is."""
    if not (isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]")):
        return value
    try:
        return json_text.loads(value)
    except (ValueError, RecursionError):
        raise DataError(
            f"the field '{field}' must be a JSON list of classes, such as "
            f"""["a", "b"], or names with '|' or ',' between them, but got {value!r}."""
        ) from None


FLAGS = ("0", "1", "0.0", "1.0", "True", "False")


def are_flags(values: Sequence[Any]) -> bool:
    """Whether each value is 0 or 1, as in tables that have a column for each class."""
    return all(isinstance(value, str | int | float) and str(value).strip() in FLAGS for value in values)


def flags_in(values: Sequence[Any], separator: str) -> int:
    """How many classes have a flag each, where all values are equally long lists of 0 and 1; 0: they are no flags."""
    lengths = set()
    for value in values:
        if isinstance(value, str):
            try:
                value = listed(value, "")
            except DataError:
                return 0
            value = [part.strip() for part in value.split(separator)] if isinstance(value, str) else value
        if not is_list(value) or any(str(part) not in FLAGS for part in value):
            return 0
        lengths.add(len(value))
    return max(lengths) if len(lengths) == 1 and max(lengths) > 1 else 0


def too_large_a_number(what: str, number: float) -> str:
    return (
        f"the {what} must be a number of at most {LARGEST_NUMBER:g}, but got {number:g}: the loss is its squared "
        "error, which 32 bits cannot hold. Correct the number, use a larger unit, or predict the logarithm."
    )


def number_of(value: Any, field: str) -> float:
    if not is_number(value):
        shown = repr(value) if isinstance(value, str | float) else kind_of(value)
        shown = "a number that is too large" if isinstance(value, int) and not isinstance(value, bool) else shown
        comma = DECIMAL_COMMA.fullmatch(value.strip()) if isinstance(value, str) else None
        hint = f" Write decimals with a point: {comma[0].replace('.', '').replace(',', '.')}." if comma else ""
        raise DataError(f"the field '{field}' must be a finite number, but got {shown}.{hint}")
    if abs(number := float(value)) > LARGEST_NUMBER:
        raise DataError(too_large_a_number(f"field '{field}'", number))
    return number


def in_order(names: set[str]) -> tuple[str, ...]:
    """Sorted as numbers where all are whole numbers, as text otherwise."""
    if all(name.removeprefix("-").isdecimal() and len(name) <= MOST_DIGITS for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


# Tables whose first line is a record: its values would be taken for the names of the columns.


TABLE_NAME = re.compile(r"\.[ct]sv\b", re.IGNORECASE)
MAX_WORDS_OF_A_NAME = 3
NO_HEADER = (
    "The first line looks like a record: is the header missing? "
    "Add a line with the names of the columns before it, such as text,label."
)


def may_lack_a_header(columns: Sequence[str], first: Sequence[DataRecord], shown: str) -> bool:
    """Some name looks like a value of its column; enough for a hint."""
    return _is_table(columns, shown) and any(
        _is_no_name(name, first) or name in map(str, _values(name, first)) for name in columns
    )


def lacks_a_header(columns: Sequence[str], first: Sequence[DataRecord], shown: str) -> bool:
    """Every name looks like a value of its column, and at least one like nothing else; enough to refuse the table."""
    looks = [_is_no_name(name, first) for name in columns]
    return (
        _is_table(columns, shown)
        and any(looks)
        and all(
            is_no_name or name in map(str, _values(name, first))
            for name, is_no_name in zip(columns, looks, strict=True)
        )
    )


def _is_table(columns: Sequence[str], shown: str) -> bool:
    """pandas calls columns without names 0, 1, 2."""
    return bool(TABLE_NAME.search(shown)) and not all(name.isdigit() and int(name) < len(columns) for name in columns)


def _is_no_name(name: str, first: Sequence[DataRecord]) -> bool:
    return len(name.split()) > MAX_WORDS_OF_A_NAME or (is_number(name) and all(map(is_number, _values(name, first))))


def _values(name: str, first: Sequence[DataRecord]) -> list[object]:
    return [record.fields[name] for record in first if record.fields.get(name) is not None]


# Ranges of something that is counted, such as the tokens of a stream or the documents of a table.


def _none() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Ranges:
    """In order, and none of them touches another: what is made by `of`."""

    begins: np.ndarray = field(default_factory=_none)
    ends: np.ndarray = field(default_factory=_none)  # not included

    @classmethod
    def of(cls, begins: np.ndarray, ends: np.ndarray) -> Ranges:
        """What these ranges cover together, be they in any order and over each other."""
        if len(begins) == 0:
            return cls()
        order = np.argsort(begins, kind="stable")
        begins, reached = begins[order].astype(np.int64), np.maximum.accumulate(ends[order]).astype(np.int64)
        is_new = np.concatenate([[True], begins[1:] > reached[:-1]])
        return cls(begins[is_new], reached[np.append(np.flatnonzero(is_new)[1:] - 1, len(begins) - 1)])

    def __len__(self) -> int:
        return len(self.begins)

    def __or__(self, other: Ranges) -> Ranges:
        return Ranges.of(np.concatenate([self.begins, other.begins]), np.concatenate([self.ends, other.ends]))

    @property
    def size(self) -> int:
        """How much they cover."""
        return int((self.ends - self.begins).sum())

    def touch(self, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Of each of these ranges, whether it shares anything with this."""
        if len(self) == 0:
            return np.zeros(len(begins), dtype=bool)
        last = np.searchsorted(self.begins, ends, side="left") - 1  # the last one that begins before the end
        return (last >= 0) & (self.ends[last] > begins)


# Whether a column may be what is looked for, by its values.


def is_prose(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values) and not all(is_number(value) for value in values)


DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T]\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2})?")
IDENTIFIER = re.compile(r"\S*\d\S*")
MIN_JUDGED = 8  # values: of fewer, nothing can be said of how often they are repeated
LONGEST_NAME = 40  # characters of a class


def is_likely_text(values: Sequence[Any]) -> bool:
    """Neither numbers, dates nor identifiers, nor a few names that come again and again."""
    found = _strings(values)
    if not found or all(_is_number_or_date(value) for value in found):
        return False
    if all(IDENTIFIER.fullmatch(value) for value in found):
        return False
    is_repeated = len(found) >= MIN_JUDGED and len(set(found)) <= len(found) / 4
    return not (is_repeated and max(map(len, found)) <= LONGEST_NAME)


def is_likely_class(values: Sequence[Any]) -> bool:
    """Neither dates nor values that hardly ever come again."""
    found = _strings([str(value) for value in values])
    if not found or all(DATE.fullmatch(value) for value in found):
        return False
    return len(found) < MIN_JUDGED or len(set(found)) <= len(found) / 2


def _strings(values: Sequence[Any]) -> list[str]:
    return [value.strip() for value in values if isinstance(value, str) and value.strip()]


def _is_number_or_date(value: str) -> bool:
    return is_number(value.replace(",", ".")) or DATE.fullmatch(value) is not None


def never(values: Sequence[Any]) -> bool:
    """Where only a name will do."""
    return False


def is_class(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str | int) for value in values)


def is_classes(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) or is_list(value) for value in values)


def is_numbers(values: Sequence[Any]) -> bool:
    return all(is_number(value) for value in values)


def is_words(values: Sequence[Any]) -> bool:
    return all(is_list(value) and all(isinstance(word, str) for word in value) for value in values)


def is_tags(values: Sequence[Any]) -> bool:
    return all(is_list(value) and is_class(value) for value in values)
