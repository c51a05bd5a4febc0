"""Tables whose first line is a record: its values would be taken for the names of the columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainbook.data.records import DataRecord
from trainbook.data.values import is_number

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
