"""A part of the user's own, named in a configuration by its Python path: package.module:Name."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from trainbook.errors import UserError


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
            near = get_close_matches(name, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
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


def _module(name: str, path: str, knob: str, error: type[UserError]) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last: a file of the user's must not take the place of an installed package
    importlib.invalidate_caches()  # a file that was written a moment ago
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
    near = get_close_matches(name, known, n=1)
    return f" Did you mean '{near[0]}'?" if near else ""
