"""A source of the user's own: a function, named by its Python path, that gives texts or records."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainbook.data.records import Complain, DataRecord
from trainbook.data.values import kind_of
from trainbook.errors import DataError
from trainbook.python_path import load_object, own_failure


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
                yield DataRecord(entry, f"record {number}")
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
