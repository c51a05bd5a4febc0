"""Where records come from, before anybody asks what is in them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainbook.bounded.files import SUFFIXES as COMPRESSED
from trainbook.data.sources.files import File, inner_name, is_compressed
from trainbook.data.sources.formats import (
    header_of,
    read_arrow,
    read_conll,
    read_csv,
    read_json,
    read_jsonl,
    read_parquet,
    read_text,
    read_text_leniently,
    read_tsv,
)
from trainbook.data.sources.records import Complain, DataRecord
from trainbook.errors import DataError

_EMPTY = "is empty"
ReadFile = Callable[[File, Complain], Iterator[DataRecord]]

# How files are read, by the end of their name, without what says how they are compressed; any other is read as text.
FORMATS: dict[str, ReadFile] = {
    ".txt": read_text,
    ".md": read_text,
    ".py": read_text,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
    ".conll": read_conll,
    ".json": read_json,
    ".arrow": read_arrow,
}
# What a folder is searched for. A JSON file in a folder is as often a setting as it is data: it has to be named.
FOLDER_SUFFIXES = (".txt", ".md", ".py", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".conll")
IN_FOLDERS = FOLDER_SUFFIXES + tuple(
    suffix + packing for suffix in FOLDER_SUFFIXES if suffix != ".parquet" for packing in COMPRESSED
)


class Reader(Protocol):
    @property
    def root(self) -> str:
        """The origin of a record is shown as root + its relative origin."""
        ...

    @property
    def has_fields(self) -> bool:
        """Some records have fields to choose from; otherwise all of them are plain text."""
        ...

    @property
    def nothing(self) -> str:
        """Why there is no text, when there is none."""
        ...

    @property
    def changed(self) -> str:
        """What happened, when a second reading differs from the first."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """What determines the records: names and contents, and neither times nor where the root is."""
        ...

    def records(self, complain: Complain) -> Iterator[DataRecord]: ...

    def first(self, count: int) -> list[DataRecord]:
        """Some records that have fields, to look at."""
        ...


@dataclass(frozen=True)
class FileReader:
    """Records of files, one file after the other."""

    root: str
    files: tuple[File, ...]
    read: ReadFile | None = None  # how each file is read; None: as its name says
    settings: str = ""  # whatever else determines what is read

    @property
    def has_fields(self) -> bool:
        return any(_has_fields(self._format(file)) for file in self.files)

    @property
    def nothing(self) -> str:
        reasons = {self._nothing_in(file): file.shown for file in reversed(self.files)}
        if len(self.files) == 1:
            return f"the file {next(iter(reasons))}"
        if list(reasons) == [_EMPTY]:
            return f"all of its {len(self.files)} files are empty"
        such_as = "; ".join(f"{shown} {reason}" for reason, shown in reversed(reasons.items()))
        return f"none of its {len(self.files)} files has any records ({such_as})"

    @property
    def changed(self) -> str:
        return "changed while it was being read. Try again."

    @property
    def kinds(self) -> dict[str, int]:
        """How many files there are of each kind, by the end of their names, the most frequent first."""
        found = Counter(Path(inner_name(file.name)).suffix.lower() or "(no suffix)" for file in self.files)
        return dict(found.most_common())

    @property
    def formats(self) -> list[str]:
        return [self._format(file).__name__ for file in self.files]

    def fingerprint(self) -> dict[str, Any]:
        return {"files": [file.facts() for file in self.files], "formats": self.formats, "settings": self.settings}

    def records(self, complain: Complain) -> Iterator[DataRecord]:
        for file in self.files:
            yield from self._format(file)(file, complain)

    def first(self, count: int) -> list[DataRecord]:
        with_fields = (file for file in self.files if _has_fields(self._format(file)))
        found = (record for file in with_fields for record in self._format(file)(file, _ignore))
        return list(itertools.islice(found, count))

    def _nothing_in(self, file: File) -> str:
        """Why a file gave no record."""
        with file.open_bytes() as stream:
            if not stream.peek(1):
                return _EMPTY
        read = self._format(file)
        if read in (read_csv, read_tsv) and (columns := header_of(file, read is read_tsv)):
            return f"has a header ({', '.join(repr(name) for name in columns)}) and no rows"
        return "has no records" if _has_fields(read) else "has only white space"

    def _format(self, file: File) -> ReadFile:
        if self.read is not None:
            return self.read
        found = FORMATS.get(Path(inner_name(file.name)).suffix.lower(), read_text)
        if found in (read_parquet, read_arrow) and is_compressed(file.name):
            raise DataError(
                f"{file.knob}: '{file.shown}' cannot be read: Parquet and Arrow files need random access, so they "
                "cannot be compressed from outside. Decompress it first."
            )
        return found


def _has_fields(read: ReadFile) -> bool:
    return read not in (read_text, read_text_leniently)


def _ignore(message: str) -> None:
    """A record that cannot be read is complained about when it is met in its turn."""
