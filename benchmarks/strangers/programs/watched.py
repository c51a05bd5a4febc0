"""Where `trainbook.watch` records a program that is not ours: beside what the program itself writes, not in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NAME, FOLDER = "run", "watched"


def place(folder: Path) -> dict[str, Any]:
    """Arguments of watch, for a program that writes to `folder`."""
    return {"name": NAME, "runs_dir": folder.parent / FOLDER}
