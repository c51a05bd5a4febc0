"""Text for a terminal, broken between words."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TextIO

NARROWEST = 40


def folded(text: str, indent: int = 0, stream: TextIO | None = None) -> str:
    """The text for a stream, stdout if none is given: lines that a terminal is too narrow for are broken between words.

    Commands stay whole, so that they can be copied. `indent` is for what follows the first piece of an indented line.
    """
    width = _width(sys.stdout if stream is None else stream)
    return "\n".join(_folded(line, indent, width) for line in text.split("\n")) if width else text


def _folded(line: str, indent: int, width: int) -> str:
    if len(line) <= width or line.lstrip().startswith("trainbook "):
        return line
    space = " " * (indent if line.startswith(" ") else 0)
    pieces = textwrap.wrap(line, width, subsequent_indent=space, break_long_words=False, break_on_hyphens=False)
    return "\n".join(pieces)


def _width(stream: TextIO) -> int | None:
    """The columns of a terminal; None for anything else."""
    try:
        return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns) if stream.isatty() else None
    except (OSError, ValueError):  # a stream without a descriptor, or a terminal that says nothing
        return None
