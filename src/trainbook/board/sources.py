"""The folders that the board was asked to show."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from trainbook.board import remembered
from trainbook.errors import UserError
from trainbook.nearest import nearest_run


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
    near = nearest_run(path.name, beside)
    if near:
        return f"there is no folder {path}. Did you mean {path.parent / near}?"
    if path == Path("runs"):
        return "there is no folder runs here. Name the folder that holds your runs, or look at trainbook board --demo."
    return f"there is no folder {path}."


@contextmanager
def demo_runs() -> Iterator[Path]:
    """A copy of the recorded runs that come with the package: whatever is done to them is undone at the next start. It
    stays when the board ends, so that commands which the board has shown still find their files."""
    recorded = files("trainbook.board") / "demo"
    if not recorded.is_dir():
        raise UserError("the recorded runs of the demo are not installed.")
    with as_file(recorded) as source, ExitStack() as stack:
        place = remembered.folder()
        try:
            if place is None:
                raise OSError
            copied = _copied(source, place / "demo")
        except OSError:  # a home that cannot be written
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="trainbook-demo-"))
            copied = _copied(source, Path(temporary) / "demo")
        yield copied


def _copied(source: Path, to: Path) -> Path:
    if to.exists():
        shutil.rmtree(to)
    return Path(shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__", "*.py")))
