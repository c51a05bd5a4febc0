"""What a built-in set says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from trainbook.data.records import LabelKind, RecordKind
from trainbook.data.sources.files import File
from trainbook.data.sources.reader import FileReader, Reader, ReadFile

BUILTIN_PREFIX = "builtin:"


@dataclass(frozen=True)
class Builtin:
    name: str
    what: str
    gives: tuple[RecordKind, ...]
    open: Callable[[dict[str, str], str, str], Reader]  # options, knob and the name as the user wrote it
    labels: LabelKind | None = None
    options: Mapping[str, str] = field(
        default_factory=dict
    )  # with their defaults: builtin:NAME?OPTION=VALUE,OPTION=VALUE


def files_reader(
    name: str, folder: Path, files: Iterable[str], knob: str, read: ReadFile | None = None, settings: str = ""
) -> FileReader:
    """Files of a set, shown under its name wherever they lie."""
    root = f"{name}/"
    found = tuple(File(folder / file, file, f"{root}{file}", knob) for file in files)
    return FileReader(root, found, read, settings)


def installed_file(package: str, path: str) -> Path | None:
    """A file that a package brought, found without importing the package."""
    try:
        found = Path(str(metadata.distribution(package).locate_file(path)))
    except metadata.PackageNotFoundError:
        return None
    return found if found.exists() else None
