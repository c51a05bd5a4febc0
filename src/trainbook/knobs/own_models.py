"""A model that was trained here before: a run's folder, or a packaged recipe to be run first. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainbook.bounded import json_text
from trainbook.errors import RunFolderError
from trainbook.knobs.config import Config
from trainbook.knobs.origin import Loaded

RECIPE_PREFIX = "recipe:"
Load = Callable[[Path | str], Loaded]


def is_recipe(name: str) -> bool:
    return name.startswith(RECIPE_PREFIX)


def is_run(name: str) -> bool:
    folder = Path(name).expanduser()
    is_lost = not (folder / "config.yaml").is_file()  # it comes back when that run is gone on with
    return (folder / "manifest.json").is_file() and (not is_lost or (folder / "checkpoints").is_dir())


def config_of(name: str, load: Load) -> Config:
    """What the earlier model was trained with, or will be. `load` is the function of `knobs.loading`, which itself
    reads pretrained models."""
    return (
        load(name.removeprefix(RECIPE_PREFIX)).config if is_recipe(name) else _recorded(Path(name).expanduser(), load)
    )


def _recorded(run: Path, load: Load) -> Config:
    """What a run was trained with.

    Its manifest knows, also when config.yaml was edited by hand, and whatever lies at model.pretrained by now.
    """
    manifest = run / "manifest.json"
    try:
        content = json_text.read(manifest)
        known = content.get("config")
    except OSError as error:
        raise RunFolderError(f"{manifest} cannot be read: {error.strerror}.") from None
    except (ValueError, AttributeError):
        raise RunFolderError(f"{manifest} is damaged. Resume that run to restore the file from a checkpoint.") from None
    return as_config(known, manifest) if known else load(run / "config.yaml").config


def as_config(known: Mapping[str, Any], manifest: Path) -> Config:
    """As a manifest holds it."""
    try:
        return Config.model_validate_json(json.dumps(known))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RunFolderError(f"{manifest} is damaged, or of another version: {where}: {first['msg']}.") from None
