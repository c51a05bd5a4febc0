"""Names of files that are compressed as a whole."""

from __future__ import annotations

from pathlib import Path

from trainbook.bounded.compressed import SUFFIXES


def inner_name(name: str) -> str:
    """The name without what says how it is compressed: of a.jsonl.gz, a.jsonl."""
    return name[: -len(suffix)] if (suffix := Path(name).suffix).lower() in SUFFIXES else name


def is_compressed(name: str) -> bool:
    return inner_name(name) != name
