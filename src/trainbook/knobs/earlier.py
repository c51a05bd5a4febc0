"""A model that was trained here before: a run's folder, or a packaged recipe to be run first. Imports no torch."""

from __future__ import annotations

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

    source = name.removeprefix(RECIPE_PREFIX) if is_recipe(name) else Path(name).expanduser() / "config.yaml"
    return load(source).config
