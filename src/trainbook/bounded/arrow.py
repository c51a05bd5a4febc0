"""Parquet files and Arrow streams, row by row, up to an expansion: a small file can hold one text a million times."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from trainbook.bounded.files import must_not_expand
from trainbook.errors import DataError, MissingExtra

ROWS_AT_A_TIME = 1000
BYTES_AT_A_TIME = 16 << 20  # of rows that are made into Python's values at once

Row = dict[str, Any]


@contextmanager
def parquet_rows(stream: BinaryIO, shown: str) -> Iterator[tuple[Mapping[bytes, bytes] | None, Iterator[Row]]]:
    """What the file says of itself, and its rows."""
    pyarrow = _pyarrow(shown)
    size = os.fstat(stream.fileno()).st_size
    try:
        # Texts stay in their dictionary, where each lies once, until a row is made of them.
        with pyarrow.parquet.ParquetFile(stream) as found:
            names = _texts(found)
            _must_not_unfold(found.metadata, size, shown)
        stream.seek(0)
        with pyarrow.parquet.ParquetFile(stream, read_dictionary=names) as opened:
            batches = opened.iter_batches(batch_size=ROWS_AT_A_TIME, use_threads=False)
            yield opened.schema_arrow.metadata, _rows(batches, size, shown)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:  # a name may be no text
        raise DataError(f"{shown}: cannot be read as Parquet: {_first_line(error)}") from None


@contextmanager
def arrow_rows(stream: BinaryIO, shown: str) -> Iterator[tuple[Mapping[bytes, bytes] | None, Iterator[Row]]]:
    pyarrow = _pyarrow(shown)
    size = os.fstat(stream.fileno()).st_size
    try:
        with pyarrow.ipc.open_stream(stream) as opened:
            yield opened.schema.metadata, _rows(opened, size, shown)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{shown}: cannot be read as an Arrow stream: {_first_line(error)}") from None


def _texts(file: Any) -> list[str]:
    columns = (file.schema.column(number) for number in range(len(file.schema)))
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _must_not_unfold(metadata: Any, size: int, shown: str) -> None:
    must_not_expand(metadata.num_rows, size, shown)
    for group in range(metadata.num_row_groups):  # not its columns: pyarrow ends the process if one is damaged
        must_not_expand(metadata.row_group(group).total_byte_size, size, shown)


def _rows(batches: Iterable[Any], size: int, shown: str) -> Iterator[Row]:
    expanded = 0
    for batch in batches:
        for begin, length, num_bytes in _slices(batch):
            expanded += num_bytes + length
            must_not_expand(expanded, size, shown)
            yield from _values(batch.slice(begin, length), shown)


def _values(rows: Any, shown: str) -> list[Row]:
    try:
        return rows.to_pylist()
    except (ValueError, OverflowError, LookupError) as error:  # text that is not UTF-8, a date that Python has not
        raise DataError(f"{shown}: has a value that cannot be read: {_first_line(error)}") from None


def _slices(batch: Any) -> Iterator[tuple[int, int, int]]:
    """Where rows begin that are made at once, how many they are and how many bytes they come to."""
    begin = 0
    while begin < batch.num_rows:
        length = batch.num_rows - begin
        while (num_bytes := _bytes_of(batch, begin, length)) > BYTES_AT_A_TIME and length > 1:
            length = max(1, length // 4)
        yield begin, length, num_bytes
        begin += length


def _bytes_of(batch: Any, begin: int, length: int) -> int:
    return sum(_expanded(column.slice(begin, length)) for column in batch.columns)


def _expanded(array: Any) -> int:
    """Bytes of an array with every text of a dictionary written out."""
    import pyarrow
    import pyarrow.compute

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        texts = array.dictionary
        if not len(texts):
            return len(array)
        if not _is_text(texts.type):
            return len(array) * max(1, texts.nbytes // len(texts))
        lengths = pyarrow.compute.call_function("binary_length", [texts]).take(array.indices)
        total = pyarrow.compute.call_function("sum", [lengths]).as_py()
        return len(array) + (total or 0)
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_map(kind):
        return len(array) + _expanded(array.flatten() if not pyarrow.types.is_map(kind) else array.items)
    if pyarrow.types.is_struct(kind):
        return len(array) + sum(_expanded(field) for field in array.flatten())
    return array.nbytes


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind)


def _pyarrow(shown: str) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f"reading '{shown}'", "pyarrow", "data") from None
    return pyarrow


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") + "."
