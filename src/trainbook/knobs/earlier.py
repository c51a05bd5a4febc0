"""A model that was trained here before: a run's folder, or a packaged recipe to be run first. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path

from trainbook.knobs.config import Config

RECIPE_PREFIX = "recipe:"


def is_recipe(name: str) -> bool:
    return name.startswith(RECIPE_PREFIX)


def is_run(name: str) -> bool:
    folder = Path(name).expanduser()
    return (folder / "manifest.json").is_file() and (folder / "config.yaml").is_file()


def config_of(name: str) -> Config:
    """What the earlier model was trained with, or will be."""
    from trainbook.knobs.loading import load  # which reads pretrained models itself

    return load(name.removeprefix(RECIPE_PREFIX)).config if is_recipe(name) else recorded(Path(name).expanduser())


def recorded(run: Path) -> Config:
    """What a run was trained with.

    Its manifest knows, also when config.yaml was edited by hand, and whatever lies at model.pretrained by now.
    """
    from trainbook.knobs.loading import load

    known = json.loads((run / "manifest.json").read_text(encoding="utf-8")).get("config")
    return Config.model_validate_json(json.dumps(known)) if known else load(run / "config.yaml").config
