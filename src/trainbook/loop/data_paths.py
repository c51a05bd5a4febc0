"""Relative paths in a run's configuration, for a run that is resumed from another working directory.

They are looked for in the current directory, then in the one that the run was last trained in, then beside the folder
that holds the runs. What is found must be the same data: that is checked when it is read.
"""

from __future__ import annotations

import glob
import os
import shlex
from pathlib import Path

from trainbook.data.sources.opening import LIST_PREFIX
from trainbook.errors import DataError, RunFolderError
from trainbook.knobs.config import Config
from trainbook.knobs.origin import Loaded
from trainbook.python_path import is_python_path
from trainbook.runs import RunFolder

DATA = ("data.source", "data.validation")
KNOBS = (*DATA, "data.cache_dir")


def with_paths_found(config: Config, run: RunFolder) -> tuple[Config, list[str]]:
    """The configuration to build with, and a sentence for each path that is not in the current directory."""
    lines: list[str] = []
    if not run.has_begun:
        return config, lines
    for knob in KNOBS:
        value = config.get(knob)
        if value is None or not _is_relative(value) or _is_there(value, ""):
            continue
        found = next((place for place in _places(run) if _is_there(value, place)), None)
        if found is not None:
            section, name = knob.split(".")
            changed = getattr(config, section).model_copy(update={name: _inside(value, found)})
            config = config.model_copy(update={section: changed})
            lines.append(f"{knob}: {value} is not in the current directory and was found in {found}")
    return config, lines


def check_paths(loaded: Loaded) -> None:
    """Of a new run: DataError for data that is not in the current directory, but beside the file that names it, or
    where the run was trained whose configuration the file is."""
    for knob in DATA:
        value, origin = loaded.config.get(knob), loaded.origins[knob]
        if value is None or origin.kind != "file" or not _is_relative(value) or _is_there(value, ""):
            continue
        folder = os.path.dirname(os.path.abspath(origin.where))
        run = RunFolder(Path(folder))
        places = _places(run) if run.manifest.is_file() else [folder]
        if (found := next((place for place in places if _is_there(value, place)), None)) is not None:
            override = shlex.quote(f"{knob}={_inside(value, found)}")
            raise DataError(
                f"{knob}: '{value}' is not in the current directory, but in {found}. Change to that directory, or add "
                f"{override}."
            )


def are_here(config: Config) -> bool:
    """Whether every relative path of the data means something in the current directory."""
    values = [config.get(knob) for knob in KNOBS]
    return all(_is_there(value, "") for value in values if value is not None and _is_relative(value))


def _places(run: RunFolder) -> list[str]:
    try:
        recorded = run.read_manifest().working_directory
    except RunFolderError:  # it is lost, and stood in for where it is needed
        recorded = ""
    beside_runs = os.path.dirname(os.path.dirname(os.path.realpath(run.path)))
    return [place for place in (recorded, beside_runs) if os.path.isabs(place)]


def _is_relative(name: str) -> bool:
    """Names of built-in sources and of functions are no paths."""
    if name.startswith("builtin:") or is_python_path(name):
        return False
    return not os.path.isabs(os.path.expanduser(name.removeprefix(LIST_PREFIX)))


def _inside(name: str, folder: str) -> str:
    if name.startswith(LIST_PREFIX):
        return LIST_PREFIX + os.path.join(folder, name.removeprefix(LIST_PREFIX))
    return os.path.join(glob.escape(folder) if glob.has_magic(name) else folder, name)


def _is_there(name: str, folder: str) -> bool:
    path = _inside(name, folder)
    file = Path(path.removeprefix(LIST_PREFIX))
    if file.exists() or ("#" in path and Path(path.rpartition("#")[0]).exists()):
        return True
    return glob.has_magic(name) and next(glob.iglob(path, recursive=True), None) is not None
