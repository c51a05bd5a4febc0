"""Where text comes from: a built-in corpus, a file, a folder or a glob; as files first, then as documents."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbook.data.names import did_you_mean, nearest
from trainbook.errors import DataError

BUILTIN_PREFIX = "builtin:"
BUILTINS = ("pystdlib",)
FOLDER_SUFFIXES = (".txt", ".md", ".py", ".jsonl", ".ndjson")
STDLIB_EXCLUDED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})


@dataclass(frozen=True)
class Document:
    text: str
    origin: str  # "path" or "path:line", relative to the root of its source
    first_line: int = 1  # the line of the file on which the text begins; 0 where the origin already names the line


@dataclass(frozen=True)
class Source:
    """Files below a root. The root is only for showing and opening: everything stable is relative to it."""

    knob: str  # "data.source" or "data.validation", for messages
    name: str  # as the user wrote it
    root: str  # the origin of a document is shown as root + its relative origin
    folder: Path
    files: tuple[str, ...]  # relative to the folder, with "/", sorted
    text_field: str
    strict: bool = True  # a byte that is not UTF-8 is an error; otherwise it is replaced

    def fingerprint(self) -> dict[str, Any]:
        """What determines the documents: names and contents, and neither times nor where the root is."""
        facts: dict[str, Any] = {"files": [self._file_facts(file) for file in self.files], "strict": self.strict}
        if any(_is_jsonl(file) for file in self.files):
            facts["text_field"] = self.text_field
        return facts

    def documents(self) -> Iterator[Document]:
        """Every document that has text, in the order of the files. Empty and blank ones are left out."""
        for file in self.files:
            found = self._jsonl_documents(file) if _is_jsonl(file) else self._text_documents(file)
            yield from (document for document in found if document.text and not document.text.isspace())

    def _file_facts(self, file: str) -> list[Any]:
        try:
            with (self.folder / file).open("rb") as stream:
                return [file, os.fstat(stream.fileno()).st_size, hashlib.file_digest(stream, "sha256").hexdigest()]
        except OSError as error:
            raise _unreadable(self.knob, f"{self.root}{file}", error) from None

    def _text_documents(self, file: str) -> Iterator[Document]:
        try:
            content = (self.folder / file).read_bytes()
        except OSError as error:
            raise _unreadable(self.knob, f"{self.root}{file}", error) from None
        yield Document(self._decode(content, f"{self.root}{file}"), file)

    def _jsonl_documents(self, file: str) -> Iterator[Document]:
        try:
            stream = (self.folder / file).open("rb")
        except OSError as error:
            raise _unreadable(self.knob, f"{self.root}{file}", error) from None
        with stream:
            for number, line in enumerate(stream, start=1):
                shown = f"{self.root}{file}:{number}"
                content = self._decode(line, shown, number)
                if content.strip():
                    text = _field_of_line(content, self.text_field, shown)
                    yield Document(text, f"{file}:{number}", first_line=0)

    def _decode(self, content: bytes, shown: str, line: int = 1) -> str:
        if not self.strict:
            return content.decode("utf-8", errors="replace")
        try:
            # A byte order mark belongs to the file, not to the text; it can only stand at the very beginning.
            return content.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{shown}: must be UTF-8 text, but has the byte 0x{error.object[error.start]:02x} "
                f"at position {error.start}. Convert it first, for example with iconv."
            ) from None


def open_source(name: str, text_field: str, knob: str = "data.source") -> Source:
    """Find the files that a source names. Nothing is read yet."""
    if name.startswith(BUILTIN_PREFIX):
        return _open_builtin(name, text_field, knob)
    path = Path(name).expanduser()
    if path.is_dir():
        files = _files_below(path)
        if not files:
            kinds = ", ".join(f"*{suffix}" for suffix in FOLDER_SUFFIXES)
            raise DataError(f"{knob}: the folder '{name}' has no file of the kinds {kinds}.")
        return Source(knob, name, f"{name.rstrip('/')}/", path, files, text_field)
    if path.exists():
        shown = name[: len(name) - len(path.name)]
        return Source(knob, name, shown, path.parent, (path.name,), text_field)
    if glob.has_magic(name):
        return _open_glob(name, text_field, knob)
    raise _missing(name, path, knob)


def _open_builtin(name: str, text_field: str, knob: str) -> Source:
    builtin = name.removeprefix(BUILTIN_PREFIX)
    if builtin not in BUILTINS:
        match = nearest(builtin, BUILTINS)
        hint = f" Did you mean '{BUILTIN_PREFIX}{match}'?" if match else ""
        known = ", ".join(BUILTIN_PREFIX + other for other in BUILTINS)
        raise DataError(f"{knob}: there is no built-in source '{name}'; there is {known}.{hint}")
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = _files_below(folder, suffixes=(".py",), excluded=STDLIB_EXCLUDED)
    if not files:
        raise DataError(f"{knob}: this Python has no source text of its standard library in '{folder}'.")
    return Source(knob, name, f"{name}/", folder, files, text_field, strict=False)


def _open_glob(pattern: str, text_field: str, knob: str) -> Source:
    expanded = os.path.expanduser(pattern)
    matches = [match for match in glob.glob(expanded, recursive=True) if os.path.isfile(match)]
    if not matches:
        raise DataError(f"{knob}: no file matches '{pattern}'.")
    # The root is the part of the pattern before its first wildcard, so that it does not depend on what matches.
    parts = Path(expanded).parts
    first_wildcard = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    folder = Path(*parts[:first_wildcard])
    files = tuple(sorted({Path(match).relative_to(folder).as_posix() for match in matches}))
    return Source(
        knob, pattern, "" if folder == Path(".") else f"{folder.as_posix().rstrip('/')}/", folder, files, text_field
    )


def _files_below(
    folder: Path, suffixes: tuple[str, ...] = FOLDER_SUFFIXES, excluded: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in excluded]
        found += [
            (Path(parent) / name).relative_to(folder).as_posix() for name in files if name.lower().endswith(suffixes)
        ]
    return tuple(sorted(found))


def _is_jsonl(file: str) -> bool:
    return file.lower().endswith((".jsonl", ".ndjson"))


def _field_of_line(line: str, field: str, shown: str) -> str:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{shown}: must be a JSON object, but got {error.msg} at column {error.colno}.") from None
    except (ValueError, RecursionError) as error:  # a number too long or a nesting too deep to be read
        raise DataError(f"{shown}: must be a JSON object, but got {error}.") from None
    if not isinstance(record, dict):
        raise DataError(f"{shown}: must be a JSON object, but got {_json_kind(record)}.")
    if field not in record:
        fields = ", ".join(f"'{name}'" for name in record) or "none"
        raise DataError(
            f"{shown}: has no field '{field}' (data.text_field); its fields are: {fields}.{did_you_mean(field, record)}"
        )
    text = record[field]
    if not isinstance(text, str):
        raise DataError(f"{shown}: the field '{field}' must be a string, but got {_json_kind(text)}.")
    # JSON can spell half of a surrogate pair, which no encoding can write.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _json_kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return {list: "a list", dict: "an object", str: "a string"}.get(type(value), "a number")


def _unreadable(knob: str, shown: str, error: OSError) -> DataError:
    return DataError(f"{knob}: '{shown}' cannot be read: {error.strerror}.")


def _missing(name: str, path: Path, knob: str) -> DataError:
    if nearest(name, BUILTINS):
        hint = f" Did you mean '{BUILTIN_PREFIX}{nearest(name, BUILTINS)}'?"
    elif path.parent.is_dir():
        match = nearest(path.name, sorted(os.listdir(path.parent)))
        hint = f" Did you mean '{name[: len(name) - len(path.name)]}{match}'?" if match else ""
    else:
        hint = f" There is no folder '{path.parent}' either."
    return DataError(f"{knob}: '{name}' does not exist.{hint}")
