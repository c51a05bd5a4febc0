"""Python's own standard library, without its tests: on every machine, a document a file."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from trainbook.data.builtin.builtin import Builtin, files_reader
from trainbook.data.sources.folders import files_below
from trainbook.data.sources.plain import read_text_leniently
from trainbook.data.sources.reader import Reader
from trainbook.errors import DataError

EXCLUDED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})


def open_pystdlib(options: dict[str, str], knob: str, name: str) -> Reader:
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = files_below(folder, (".py",), EXCLUDED)
    if not files:
        raise DataError(f"{knob}: this Python has no source code of its standard library in '{folder}'.")
    return files_reader(name, folder, files, knob, read_text_leniently)


BUILTIN = Builtin(
    "pystdlib", "source code of Python's standard library, one document per file", ("text",), open_pystdlib
)
