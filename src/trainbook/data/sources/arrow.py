"""Parquet files, and the Arrow files of Hugging Face datasets: rows with types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trainbook.data.records import Complain, Record
from trainbook.data.sources.files import File
from trainbook.errors import DataError, MissingExtra

ROWS_AT_A_TIME = 1000


def read_parquet(file: File, complain: Complain) -> Iterator[Record]:
    pyarrow = _pyarrow(file)
    try:
        with file.open_bytes() as stream, pyarrow.parquet.ParquetFile(stream) as opened:
            batches = opened.iter_batches(batch_size=ROWS_AT_A_TIME)
            yield from _rows(file, opened.schema_arrow.metadata, batches)
    except pyarrow.ArrowException as error:
        raise DataError(f"{file.shown}: cannot be read as Parquet: {_first_line(error)}") from None


def read_arrow(file: File, complain: Complain) -> Iterator[Record]:
    pyarrow = _pyarrow(file)
    try:
        with file.open_bytes() as stream, pyarrow.ipc.open_stream(stream) as opened:
            yield from _rows(file, opened.schema.metadata, opened)
    except pyarrow.ArrowException as error:
        raise DataError(f"{file.shown}: cannot be read as an Arrow stream: {_first_line(error)}") from None


def _rows(file: File, metadata: Mapping[bytes, bytes] | None, batches: Iterable[Any]) -> Iterator[Record]:
    named = _class_names(metadata)
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            for column, name in named.items():
                if column in row:
                    row[column] = name(row[column])
            yield Record(row, f"{file.name}, row {number}")


def _class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, Callable[[Any], Any]]:
    """How the numbers of a column become names, for columns whose names Hugging Face has written beside the types."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
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


def _pyarrow(file: File) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f"reading '{file.shown}'", "pyarrow", "data") from None
    return pyarrow


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") + "."
