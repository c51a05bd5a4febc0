"""The folders that the board was asked to show."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from trainbook.errors import UserError
from trainbook.nearest import nearest


def must_exist(folders: Sequence[Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for folder in folders:
        path = folder.expanduser()
        if not path.exists():
            raise UserError(_missing(path))
        found.setdefault(path.resolve(), path)
    return list(found.values())


def _missing(path: Path) -> str:
    beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, beside, cutoff=0.5)
    if near:
        return f"there is no folder {path}. Did you mean {path.parent / near}?"
    if path == Path("runs"):
        return "there is no folder runs here. Name the folder that holds your runs, or look at trainbook board --demo."
    return f"there is no folder {path}."


@contextmanager
def demo_runs() -> Iterator[Path]:
    """The recorded runs that come with the package, in a temporary folder: whatever is done to them is undone."""
    recorded = files("trainbook.board") / "demo"
    if not recorded.is_dir():
        raise UserError("the recorded runs of the demo are not installed.")
    with tempfile.TemporaryDirectory(prefix="trainbook-demo-") as folder, as_file(recorded) as source:
        copied = Path(folder) / "demo"
        shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
        yield copied
