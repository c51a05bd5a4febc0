"""The folder of a try, beside its run: `try.json` keeps what was asked and what has come of it until now.

The same question again finds its folder, and what is kept there; another one has a folder of its own, with a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbook.bounded.files import read_bytes
from trainbook.contained import must_stay_inside
from trainbook.errors import RunFolderError
from trainbook.runs import RunFolder, jsonl, write_text_atomically

STATE = "try.json"


@dataclass(frozen=True)
class TryFolder:
    path: Path
    state: dict[str, Any]

    def keep(self) -> None:
        write_text_atomically(self.path / STATE, jsonl.dumps(self.state) + "\n")


def open_try(run: RunFolder, suffix: str, asked: Mapping[str, Any], nothing_yet: Mapping[str, Any]) -> TryFolder:
    """The folder in which this is asked, made if there is none. `nothing_yet`: what has come of it at first."""
    beside = run.path if run.path.name == run.name else run.path.resolve()  # as for `.` or a link
    number = 1
    while True:
        path = beside.with_name(f"{beside.name}-try{suffix}" + (f"-{number}" if number > 1 else ""))
        must_stay_inside(path)
        state = _read(path, (*asked, *nothing_yet))
        if state is None:
            return _made(path, {**asked, **nothing_yet})
        if all(state[name] == value for name, value in asked.items()):
            return TryFolder(path, state)
        number += 1


def _made(path: Path, state: dict[str, Any]) -> TryFolder:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be created: {error.strerror}.") from None
    made = TryFolder(path, state)
    made.keep()
    return made


def _read(path: Path, names: tuple[str, ...]) -> dict[str, Any] | None:
    file = path / STATE
    if not file.is_file():
        if path.exists() and any(path.iterdir()):
            raise RunFolderError(f"{path} already exists and was not made by doctor --try. Rename it.")
        return None
    try:
        state = jsonl.loads(read_bytes(file))
        return {name: state[name] for name in names}
    except (ValueError, LookupError, TypeError):
        raise RunFolderError(f"{file} is damaged. Remove the folder to try again.") from None
