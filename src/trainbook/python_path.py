"""A part of the user's own, named in a configuration by its Python path: package.module:Name."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from trainbook.errors import UserError
from trainbook.nearest import did_you_mean

_PYTHON_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
NO_FILE = "no file that can be found without importing it"


def is_python_path(name: str) -> bool:
    return _PYTHON_PATH.fullmatch(name) is not None


def file_of(path: str) -> str | None:
    """The file that importing a path would run, found without importing anything. None: there is no such module."""
    name = path.partition(":")[0]
    if (loaded := sys.modules.get(name)) is not None:
        file = getattr(loaded, "__file__", None)
        return os.path.realpath(file) if file else NO_FILE
    _look_in_current_directory()
    first, *rest = name.split(".")
    try:
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        found = next((spec for finder in finders if (spec := finder.find_spec(first, None)) is not None), None)
        if found is None:
            return NO_FILE if first in sys.modules else None
        for part in rest:
            found = _inside(found, part)
    except Exception:  # a name that is none; a finder of somebody's own
        return NO_FILE
    return os.path.realpath(found.origin) if found is not None and found.has_location and found.origin else NO_FILE


def _inside(package: ModuleSpec | None, name: str) -> ModuleSpec | None:
    """By the last part of a module's name: for the whole name, Python would import the packages around it.

    None: a package may make its modules as it pleases once it is imported.
    """
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(name, list(package.submodule_search_locations))


def load_object(path: str, knob: str, error: type[UserError] = UserError) -> Any:
    """What a path names. Modules are looked for where Python looks, and then in the current directory."""
    module_name, colon, attributes = path.partition(":")
    if not colon or not module_name or not attributes:
        raise error(f"{knob}: must be package.module:Name, but got '{path}'.")
    found: Any = _module(module_name, path, knob, error)
    for name in attributes.split("."):
        if not hasattr(found, name):
            owner = getattr(found, "__name__", module_name)
            known = [other for other in vars(found) if not other.startswith("_")] if hasattr(found, "__dict__") else []
            hint = did_you_mean(name, known)
            raise error(f"{knob}: there is no '{name}' in {owner}, which '{path}' asks for.{hint}")
        found = getattr(found, name)
    return found


def own_failure(what: str, failure: BaseException, error: type[UserError] = UserError) -> UserError:
    """An error in the user's own code, as a message that keeps where in it that was."""
    frames = traceback.extract_tb(failure.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(os.path.dirname(__file__) + os.sep)]
    theirs = [frame for frame in theirs if "<frozen importlib" not in frame.filename]
    # A mistake in the syntax has no frame of its own; its place is in the error itself.
    last = "".join(traceback.format_exception_only(failure)).rstrip()
    return error(f"{what}:\n{''.join(traceback.format_list(theirs))}{last}")


def _look_in_current_directory() -> str:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last: a file of the user's must not take the place of an installed package
    importlib.invalidate_caches()  # a file that was written a moment ago
    return here


def _module(name: str, path: str, knob: str, error: type[UserError]) -> ModuleType:
    here = _look_in_current_directory()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as failure:
        missing = failure.name or name
        if name != missing and not name.startswith(missing + "."):  # something that it imports itself
            raise own_failure(f"{knob}: '{path}' cannot be imported", failure, error) from failure
        raise error(
            f"{knob}: there is no module '{missing}', which '{path}' asks for: neither installed nor in "
            f"{here}.{_nearest_file(missing, here)}"
        ) from None
    except Exception as failure:
        raise own_failure(f"{knob}: '{path}' cannot be imported", failure, error) from failure


def _nearest_file(name: str, folder: str) -> str:
    known = [entry.removesuffix(".py") for entry in os.listdir(folder) if entry.endswith(".py")]
    return did_you_mean(name, known)
