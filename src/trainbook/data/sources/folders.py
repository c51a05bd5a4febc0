"""The files below a folder."""

from __future__ import annotations

import os
from pathlib import Path


def files_below(folder: Path, suffixes: tuple[str, ...], excluded: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Relative to the folder, with "/", sorted; those with one of the suffixes, and not in an excluded folder. What is
    hidden is left alone, as a glob does."""
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in excluded and not name.startswith(".")]
        found += [
            (Path(parent) / name).relative_to(folder).as_posix()
            for name in files
            if name.lower().endswith(suffixes) and not name.startswith(".")
        ]
    return tuple(sorted(found))
