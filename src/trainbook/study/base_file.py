"""What all runs of a study share, as a file: beside runs that were trained with it, it is not another one."""

from __future__ import annotations

from pathlib import Path

from trainbook.errors import ResumeError
from trainbook.knobs import load
from trainbook.knobs.aliases import by_path
from trainbook.knobs.text import read_file
from trainbook.runs import write_text_atomically


def keep_base(path: Path, text: str, has_runs: bool) -> None:
    """Write it, unless it is there. ResumeError: it has other values, and there are runs."""
    if path.is_file():
        if read_file(path) == text:
            return
        changed = _differing(path, text) if has_runs else []
        if changed:
            raise ResumeError(
                f"{path} no longer matches the base of this study: {', '.join(changed)} differ. Its runs were trained "
                "with the old values: start a new study under another --name."
            )
    write_text_atomically(path, text)


def _differing(path: Path, text: str) -> list[str]:
    """The knobs by which a base's file differs from what it should be."""
    there, asked = load(path), load(path, text=text)
    return [knob for knob in by_path() if there.get(knob) != asked.get(knob)]
