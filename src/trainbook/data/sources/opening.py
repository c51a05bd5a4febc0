"""What a source's name means: a built-in set, a function, a dataset, a file, a folder, a glob or a list of those."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.contained import is_plain_name
from trainbook.data.builtin import BUILTIN_PREFIX, builtin_names, open_builtin
from trainbook.data.sources.fields import TEXT_ONLY, FieldSpec
from trainbook.data.sources.files import File, decode, files_below, is_a_record
from trainbook.data.sources.reader import FOLDER_SUFFIXES, IN_FOLDERS, FileReader, Reader
from trainbook.data.sources.records import Complain, DataRecord, with_nested
from trainbook.data.sources.source import Source
from trainbook.data.sources.values import kind_of
from trainbook.errors import DataError
from trainbook.nearest import did_you_mean, nearest
from trainbook.python_path import is_python_path, load_object, own_failure

# A dataset that Hugging Face's `save_to_disk` wrote: a folder of Arrow files, or of several splits.


DICT_FILE = "dataset_dict.json"
STATE_FILE = "state.json"
DEFAULT_SPLIT = "train"


def is_dataset(folder: Path) -> bool:
    return (folder / DICT_FILE).is_file() or (
        (folder / STATE_FILE).is_file() and (folder / "dataset_info.json").is_file()
    )


def files_of(folder: Path, split: str | None, name: str, knob: str) -> tuple[str, ...]:
    """The Arrow files in their order, relative to the folder. Of several splits, training is taken unless one is named:
    a split that was put aside for a last judgement is never read by accident."""
    below = ""
    if (folder / DICT_FILE).is_file():
        splits = _json(folder / DICT_FILE, knob)["splits"]
        chosen = split or DEFAULT_SPLIT
        if chosen not in splits or not is_plain_name(chosen):
            known = ", ".join(f"'{name}#{other}'" for other in splits)
            raise DataError(
                f"{knob}: the dataset '{name}' has no split '{chosen}'; it has {known}.{did_you_mean(chosen, splits)}"
            )
        below = f"{chosen}/"
    elif split is not None:
        raise DataError(f"{knob}: the dataset '{name}' has no splits, so '#{split}' cannot select one.")
    state = _json(folder / below / STATE_FILE, knob)
    if state.get("_indices_data_files"):
        raise DataError(
            f"{knob}: the dataset '{name}' was saved with a selection of rows. Call flatten_indices() and save it "
            "again."
        )
    names = [entry["filename"] for entry in state["_data_files"]]
    for each in names:
        if not is_plain_name(each):
            raise DataError(
                f"{knob}: '{folder / below / STATE_FILE}' names {each!r}, which is not a file of the dataset."
            )
    return tuple(f"{below}{each}" for each in names)


def _json(path: Path, knob: str) -> dict[str, Any]:
    try:
        return json_text.read(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{knob}: '{path}' cannot be read: {error}.") from None


# A source of the user's own: a function, named by its Python path, that gives texts or records.


@dataclass(frozen=True)
class PythonReader:
    """Calls the function anew for each reading: it must give the same records every time."""

    knob: str
    name: str
    function: Callable[[], Any]
    has_fields = True
    nothing = "the function returned no records"
    changed = "returned different records when called again. It must return the same records every time."

    @property
    def root(self) -> str:
        return f"{self.name} "

    def fingerprint(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for entry in self._entries():
            digest.update(json.dumps(entry, default=repr).encode("utf-8", "surrogatepass") + b"\n")
        return {"records": digest.hexdigest()}

    def records(self, complain: Complain) -> Iterator[DataRecord]:
        for number, entry in enumerate(self._entries(), start=1):
            if isinstance(entry, str):
                entry = {"text": entry}
            if isinstance(entry, Mapping):
                yield DataRecord(with_nested(entry), f"record {number}")
            else:
                complain(f"{self.root}record {number}: must be a string or a mapping, but got {kind_of(entry)}.")

    def first(self, count: int) -> list[DataRecord]:
        return list(itertools.islice(self.records(lambda message: None), count))

    def _entries(self) -> Iterator[Any]:
        try:
            given = self.function()
            if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__iter__"):
                law = "must return an iterable of strings or mappings"
                raise DataError(f"{self.knob}: '{self.name}' {law}, but returned {kind_of(given)}.")
            for entry in given:
                yield _plain(entry)
        except DataError:
            raise
        except Exception as error:
            raise own_failure(f"{self.knob}: '{self.name}' raised an error", error, DataError) from error


def open_python(name: str, knob: str) -> PythonReader:
    found = load_object(name, knob, DataError)
    if not callable(found):
        raise DataError(f"{knob}: '{name}' must be a function without arguments, but is {kind_of(found)}.")
    return PythonReader(knob, name, found)


def _plain(value: Any) -> Any:
    """Arrays and numbers of numpy and its like, as Python's own."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.tolist() if hasattr(value, "tolist") else value


LIST_PREFIX = "@"


def open_source(
    name: str, wanted: FieldSpec = TEXT_ONLY, knob: str = "data.source", like: Source | None = None
) -> Source:
    """Find what a source names. Nothing is read yet."""
    return Source(knob, name, _open(name, wanted, knob), wanted, like)


def _open(name: str, wanted: FieldSpec, knob: str) -> Reader:
    if name.startswith(BUILTIN_PREFIX):
        return open_builtin(name, wanted, knob)
    path = Path(name).expanduser()
    before, _, split = name.rpartition("#")
    if path.is_dir():
        if is_dataset(path):
            return _files(f"{name.rstrip('/')}/", path, files_of(path, None, name, knob), knob)
        return _files(f"{name.rstrip('/')}/", path, _in_folder(path, name, knob), knob)
    if path.exists():
        return _files(name[: len(name) - len(path.name)], path.parent, [path.name], knob)
    if split and is_dataset(folder := Path(before).expanduser()):
        return _files(f"{before.rstrip('/')}/", folder, files_of(folder, split, before, knob), knob)
    if is_python_path(name):
        return open_python(name, knob)
    if name.startswith(LIST_PREFIX):
        return _open_list(name, knob)
    if glob.has_magic(name):
        return _open_glob(name, knob)
    raise _missing(name, path, knob)


def _files(root: str, folder: Path, names: Iterable[str], knob: str) -> FileReader:
    return FileReader(root, tuple(File(folder / name, name, f"{root}{name}", knob) for name in names))


def _in_folder(path: Path, name: str, knob: str) -> tuple[str, ...]:
    files = files_below(path, IN_FOLDERS)
    if not files:
        kinds = ", ".join(f"*{suffix}" for suffix in FOLDER_SUFFIXES)
        raise DataError(f"{knob}: the folder '{name}' has no file of these types: {kinds}.")
    return files


def _open_list(name: str, knob: str) -> FileReader:
    """A file that names a file, a folder or a glob on each line, relative to itself. Their order is the list's."""
    path = Path(name.removeprefix(LIST_PREFIX)).expanduser()
    listing = File(path, path.name, str(path), knob)
    if not path.exists():
        raise _missing(str(path), path, knob)
    with listing.open() as stream:
        lines = decode(stream.read(), str(path)).splitlines()
    found: dict[Path, None] = {}
    for number, line in enumerate(lines, start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        for file in _named_in_list(path.parent / Path(entry).expanduser(), f"{path}:{number}", knob):
            if file in found:
                raise DataError(f"{path}:{number}: '{file}' is listed twice.")
            found[file] = None
    if not found:
        raise DataError(f"{knob}: the list '{path}' has no file.")
    if all(file.is_relative_to(path.parent) for file in found):
        root = "" if path.parent == Path(".") else f"{path.parent.as_posix().rstrip('/')}/"
        return _files(root, path.parent, [file.relative_to(path.parent).as_posix() for file in found], knob)
    return _files("/", Path("/"), [Path(os.path.abspath(file)).as_posix().lstrip("/") for file in found], knob)


def _named_in_list(path: Path, place: str, knob: str) -> list[Path]:
    if path.is_dir():
        return [path / file for file in _in_folder(path, str(path), f"{place}: {knob}")]
    if path.exists():
        return [path]
    if not glob.has_magic(str(path)):
        raise _missing(str(path), path, f"{place}: {knob}")
    return [Path(match) for match in _matches(str(path), str(path), f"{place}: {knob}")]


def _matches(pattern: str, shown: str, knob: str) -> list[str]:
    fixed = len(list(itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts)))
    matches = sorted(
        match
        for match in glob.glob(pattern, recursive=True)
        if os.path.isfile(match) and not _is_in_a_record(Path(match), fixed)
    )
    if matches:
        return matches
    parent = Path(pattern).parent
    while glob.has_magic(str(parent)):
        parent = parent.parent
    hint = "" if parent.is_dir() else f" There is no folder '{parent}' either."
    raise DataError(f"{knob}: no file matches '{shown}'.{hint}")


def _is_in_a_record(file: Path, fixed: int) -> bool:
    """Whether a wildcard leads into the folder of a run or study. The first `fixed` parts are those the user wrote."""
    return any(is_a_record(folder) for folder in file.parents if len(folder.parts) > fixed)


def _open_glob(pattern: str, knob: str) -> FileReader:
    expanded = os.path.expanduser(pattern)
    matches = _matches(expanded, pattern, knob)
    # The root is the part of the pattern before its first wildcard, so that it does not depend on what matches.
    parts = Path(expanded).parts
    first_wildcard = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    folder = Path(*parts[:first_wildcard])
    names = sorted({Path(match).relative_to(folder).as_posix() for match in matches})
    return _files("" if folder == Path(".") else f"{folder.as_posix().rstrip('/')}/", folder, names, knob)


def _missing(name: str, path: Path, knob: str) -> DataError:
    if match := nearest(name, builtin_names()):
        hint = f" Did you mean '{BUILTIN_PREFIX}{match}'?"
    elif path.parent.is_dir():
        match = nearest(path.name, sorted(os.listdir(path.parent)))
        hint = f" Did you mean '{name[: len(name) - len(path.name)]}{match}'?" if match else ""
    else:
        hint = f" There is no folder '{path.parent}' either."
    return DataError(f"{knob}: '{name}' does not exist.{hint}")
