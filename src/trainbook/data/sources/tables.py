"""CSV and TSV: a row is a record, and the first row names the columns."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader

from trainbook.bounded import tables
from trainbook.data.records import Complain, DataRecord
from trainbook.data.sources.files import LONGEST_LINE_BYTES, File, bounded_lines, decode
from trainbook.errors import BeyondBounds, DataError

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}


def read_csv(file: File, complain: Complain) -> Iterator[DataRecord]:
    """Separated by whatever of comma, semicolon and tab divides the first line into the most columns."""
    yield from _read(file, _delimiter(file), complain)


def read_tsv(file: File, complain: Complain) -> Iterator[DataRecord]:
    yield from _read(file, "\t", complain)


def header_of(file: File, is_tsv: bool) -> list[str]:
    """The names in the first row; none where there is no row."""
    delimiter = "\t" if is_tsv else _delimiter(file)
    with file.open() as stream:
        rows = tables.CsvRows(_decoded(file, stream, []), delimiter, file.shown)
        return [name.strip() for name in next((row for row in rows if row), [])]


def _delimiter(file: File) -> str:
    with file.open() as stream:
        first_line = stream.readline(LONGEST_LINE_BYTES).decode("utf-8", errors="replace")
    return max(DELIMITERS, key=lambda delimiter: _num_columns(first_line, delimiter))


def _num_columns(line: str, delimiter: str) -> int:
    try:
        return len(next(tables.CsvRows([line], delimiter, ""), []))
    except BeyondBounds:  # what is wrong is said when the file is read
        return tables.MOST_COLUMNS + 1
    except tables.Error:
        return 0


def _read(file: File, delimiter: str, complain: Complain) -> Iterator[DataRecord]:
    with file.open() as stream:
        undecodable: list[str] = []  # what is wrong with lines of the row that is being read
        lines = _decoded(file, stream, undecodable)
        # Strict: a quotation mark in the wrong place would otherwise swallow rows without a word.
        rows = tables.CsvRows(lines, delimiter, file.shown, strict=True)
        columns: list[str] | None = None
        while True:
            # A quoted cell may hold line breaks, so a row begins behind the last line of the one before.
            number = rows.line_num + 1
            shown = f"{file.shown}:{number}"
            try:
                row = next(rows)
            except StopIteration:
                return
            except tables.Error as error:
                if undecodable:
                    raise DataError(undecodable[0]) from None
                if "field larger than" in str(error):
                    raise DataError(
                        f"{shown}: a cell must have at most {tables.MOST_CELL_CHARACTERS:,} characters, because it is "
                        "held in memory as a whole. Split the text into several rows, or write it to a text file of "
                        "its own (.txt), which is read piece by piece."
                    ) from None
                if "new-line character" in str(error):
                    raise DataError(
                        f"{shown}: has lines that end in a bare carriage return (old Mac format). Convert them first, "
                        "for example with tr '\\r' '\\n'."
                    ) from None
                raise DataError(
                    f"{shown}: cannot be read as {DELIMITERS[delimiter]}-separated cells: {error}. A cell that "
                    "contains quotation marks must be quoted, with its own quotation marks doubled."
                ) from None
            if not row:
                continue
            if undecodable:
                problem = undecodable[0]
                undecodable.clear()
                if columns is None:
                    raise DataError(problem)
                complain(problem)
                continue
            if columns is None:
                columns = _header(row, shown)
            elif len(row) != len(columns):
                law = f"{shown}: must have {len(columns)} cells, one for each column, but has {len(row)}."
                quoted = f" A cell that contains a {DELIMITERS[delimiter]} must be quoted."
                complain(law + quoted if len(row) > len(columns) else law)
            else:
                yield DataRecord(dict(zip(columns, row, strict=True)), f"{file.name}:{number}")


def _decoded(file: File, stream: BufferedReader, undecodable: list[str]) -> Iterator[str]:
    """Each line as text. What is not UTF-8 is told beside, so that the rows behind it can still be read."""
    for number, line in enumerate(bounded_lines(stream, file, _refuse), start=1):
        try:
            yield decode(line, f"{file.shown}:{number}", number)
        except DataError as error:
            undecodable.append(str(error))
            yield line.decode("utf-8", errors="replace")


def _refuse(message: str) -> None:
    raise DataError(message)


def _header(row: list[str], shown: str) -> list[str]:
    names = [name.strip() for name in row]
    if "" in names:
        problem = f"column {names.index('') + 1} has no name"
    elif repeated := next((name for name in names if names.count(name) > 1), None):
        problem = f"two columns are named '{repeated}'"
    else:
        return names
    raise DataError(f"{shown}: the first row must name the columns, each once, but {problem}.")
