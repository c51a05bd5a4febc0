"""The packaged recipes: whole configurations, as YAML, that are called by name."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from trainbook.errors import UserError


def names() -> list[str]:
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def path(name: str) -> Path:
    """The file of a packaged recipe; UserError if there is none of that name."""
    known = names()
    if name in known:
        return _folder() / f"{name}.yaml"
    if _looks_like_a_file(name):
        raise UserError(f"{name}: no such file.")
    near = nearest(name)
    meant = f" Did you mean {near}?" if near else ""
    raise UserError(f"{name}: no such recipe or file.{meant} Packaged recipes: {', '.join(known)}.")


def nearest(name: str) -> str | None:
    return next(iter(get_close_matches(name.lower(), names(), n=1, cutoff=0.5)), None)


def _looks_like_a_file(name: str) -> bool:
    return "/" in name or "\\" in name or name.endswith((".yaml", ".yml", ".json", ".py"))


def _folder() -> Path:
    return Path(str(files("trainbook") / "recipes"))
