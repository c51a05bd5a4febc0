"""The packaged recipes: whole configurations, as YAML, that are called by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from os.path import exists, isdir, isfile  # those of Path raise for a name that is too long
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainbook.bounded import json_text
from trainbook.errors import RunFolderError, UserError
from trainbook.knobs.config import Config
from trainbook.knobs.origin import Loaded
from trainbook.knobs.own_module import FIT
from trainbook.nearest import did_you_mean
from trainbook.nearest import nearest as nearest_name

# Of these, no file is a configuration; a text with such a suffix may be one.
_SUFFIXES_OF_RECORDS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".conll", ".gz", ".bz2", ".xz", ".zst")
_SUFFIXES = (".yaml", ".yml", ".json", ".py")  # of configurations
_SUFFIXES_OF_TEXT = (".txt", ".md")
_NEEDED = "but a recipe, or a YAML or Python file, is needed"


def names() -> list[str]:
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def path(name: str) -> Path:
    """The file of a packaged recipe; UserError if there is none of that name."""
    known = names()
    if name in known:
        return _folder() / f"{name}.yaml"
    if _looks_like_a_file(name):
        raise UserError(f"{name}: no such file.{_file_like(Path(name))}")
    near = nearest(name)
    meant = f" Did you mean {near}?" if near else ""
    raise UserError(f"{name}: no such recipe or file.{meant} Packaged recipes: {', '.join(known)}.")


def must_not_be_data_or_a_run(source: Path) -> None:
    """What other verbs take in the place of a recipe: told before it is read as YAML."""
    if source.suffix.lower() in _SUFFIXES_OF_RECORDS and isfile(source):
        raise is_data(source)
    # `runs/x` is a place; a bare name is also one in the folder of runs.
    places = (source, Path("runs") / source) if len(source.parts) == 1 and not exists(source) else (source,)
    for place in places:
        if isfile(place / "manifest.json") and isfile(place / "config.yaml"):
            raise UserError(f"{source}: is a run, {_NEEDED}. Its configuration is {place / 'config.yaml'}.")
    if isdir(source):
        raise UserError(f"{source}: is a folder, {_NEEDED}. If it holds data: {_as_source(source)}")


def is_data(source: Path) -> UserError:
    return UserError(f"{source}: is a data file, {_NEEDED}. To use the data: {_as_source(source)}")


def may_be_data(source: Path) -> bool:
    """A text that is not a configuration after all."""
    return source.suffix.lower() in _SUFFIXES_OF_TEXT


def _as_source(source: Path) -> str:
    return f"name a recipe or configuration and add data.source={source}, as in gpt-tiny data.source={source}."


def nearest(name: str) -> str | None:
    return nearest_name(name, names(), cutoff=0.5)


def _looks_like_a_file(name: str) -> bool:
    return "/" in name or "\\" in name or name.endswith(_SUFFIXES)


def _file_like(path: Path) -> str:
    """A sentence with the configuration in the same folder whose name is most like this one."""
    try:
        there = [found.name for found in path.parent.iterdir() if found.suffix in _SUFFIXES]
    except OSError:
        return ""
    return did_you_mean(path.name, there, 0.75, path.with_name)


def _folder() -> Path:
    return Path(str(files("trainbook") / "recipes"))


# A model that was trained here before: a run's folder, or a packaged recipe to be run first. Imports no torch.


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
    if content.get("recipe") == FIT:
        raise UserError(
            f"model.pretrained: {run} was made by trainbook.fit from your own module, not a built-in model."
        )
    return as_config(known, manifest) if known else load(run / "config.yaml").config


def as_config(known: Mapping[str, Any], manifest: Path) -> Config:
    """As a manifest holds it."""
    try:
        return Config.model_validate_json(json.dumps(known))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RunFolderError(f"{manifest} is damaged, or of another version: {where}: {first['msg']}.") from None
