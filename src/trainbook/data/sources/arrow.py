"""Parquet files, and the Arrow files of Hugging Face datasets: rows with types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trainbook.bounded import arrow, json_text
from trainbook.data.records import Complain, DataRecord
from trainbook.data.sources.files import File


def read_parquet(file: File, complain: Complain) -> Iterator[DataRecord]:
    with file.open_bytes() as stream, arrow.parquet_rows(stream, file.shown) as (metadata, rows):
        yield from _records(file, metadata, rows)


def read_arrow(file: File, complain: Complain) -> Iterator[DataRecord]:
    with file.open_bytes() as stream, arrow.arrow_rows(stream, file.shown) as (metadata, rows):
        yield from _records(file, metadata, rows)


def _records(
    file: File, metadata: Mapping[bytes, bytes] | None, rows: Iterable[dict[str, Any]]
) -> Iterator[DataRecord]:
    named = _class_names(metadata)
    for number, row in enumerate(rows, start=1):
        for column, name in named.items():
            if column in row:
                row[column] = name(row[column])
        yield DataRecord(row, f"{file.name}, row {number}")


def _class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, Callable[[Any], Any]]:
    """How the numbers of a column become names, for columns whose names Hugging Face has written beside the types."""
    try:
        features = json_text.loads((metadata or {})[b"huggingface"])["info"]["features"]
        found = {column: _names_of(feature) for column, feature in features.items()}
    except (KeyError, TypeError, ValueError):
        return {}
    return {column: name for column, name in found.items() if name is not None}


def _names_of(feature: Any) -> Callable[[Any], Any] | None:
    if isinstance(feature, list) and feature:
        inner = _names_of(feature[0])
    elif isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
        names = feature["names"]
        # Published test sets without labels have -1 everywhere.
        return lambda value: names[value] if isinstance(value, int) and 0 <= value < len(names) else None
    elif isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        inner = _names_of(feature.get("feature"))
    else:
        return None
    return None if inner is None else lambda values: None if values is None else [inner(value) for value in values]
