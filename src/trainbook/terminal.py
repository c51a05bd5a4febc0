"""All that is printed goes through here: no character of a name, a file or a model's text can command a terminal.

`echo` and `write` for plain text, `new_console` for rich's tables and colours. The command line also puts `Guarded` in
place of stdout and stderr, for warnings and the output of other packages. A test walks the source and fails where
something is printed in another way.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


# C0 but for tab and line ends, DEL, C1; what turns the direction of text; halves of characters, which have no encoding.
_COMMANDS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")


def visible(text: str) -> str:
    r"""The text with its control characters written out, as \u001b; in JSON this means the same character."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: object = "", err: bool = False) -> None:
    """A line to stdout or stderr."""
    print(visible(str(text)), file=sys.stderr if err else sys.stdout, flush=True)


def write(text: str) -> None:
    """To stdout, as it is."""
    sys.stdout.write(visible(text))


def new_console(**options: Any) -> Console:
    """A console that takes strings as they are: square brackets and colons in them mean nothing."""
    return _console_type()(markup=False, emoji=False, **options)


def marked(markup: str, *values: object) -> Text:
    """`marked("[bold]{}[/bold] of {}", name, total)`: text with rich's markup, in which values are no markup."""
    from rich.markup import escape
    from rich.text import Text

    return Text.from_markup(markup.format(*(escape(visible(str(value))) for value in values)), emoji=False)


class Guarded:
    """A stream that writes control characters out. Consoles of rich write to the stream behind it."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # the name is rich's

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self.rich_proxied_file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def guarded_streams() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Guarded(stream) for stream in before)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


_Console: type[Console] | None = None


def _console_type() -> type[Console]:
    """Made when it is first asked for: importing rich takes a tenth of a second."""
    global _Console
    if _Console is not None:
        return _Console
    from rich.console import Console as RichConsole
    from rich.segment import Segment

    class GuardedConsole(RichConsole):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                is_of_rich = segment.control is not None  # such as moving the cursor
                yield segment if is_of_rich else Segment(visible(segment.text), segment.style)

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)  # before columns are measured

        @property
        def file(self) -> Any:
            found = super().file
            while (behind := getattr(found, "rich_proxied_file", None)) is not None:
                found = behind
            return found

        @file.setter
        def file(self, new: Any) -> None:
            self._file = new

    _Console = GuardedConsole
    return _Console


def without_password(url: str) -> str:
    url = re.sub(r"(://[^:/@\s]*):\S*@", r"\1:***@", url)
    return re.sub(r"([?&]password=)[^&\s]*", r"\1***", url)


def this_command() -> str:
    """As it can be typed again, without passwords."""
    return shlex.join(["trainbook", *map(without_password, sys.argv[1:])])


# Text for a terminal, broken between words.


NARROWEST = 40


def folded(text: str, indent: int = 0, stream: TextIO | None = None) -> str:
    """The text for a stream, stdout if none is given: lines that a terminal is too narrow for are broken between words.

    Commands stay whole, so that they can be copied. `indent` is for what follows the first piece of an indented line.
    """
    width = _width(sys.stdout if stream is None else stream)
    return "\n".join(_folded(line, indent, width) for line in text.split("\n")) if width else text


def _folded(line: str, indent: int, width: int) -> str:
    if len(line) <= width:
        return line
    if line.lstrip().startswith("trainbook "):
        space = " " * (len(line) - len(line.lstrip()))
        command, _, use = line.strip().partition("   ")  # the command, and in a list of them what it does
        below = space + "    "
        uses = textwrap.wrap(use.strip(), width, initial_indent=below, subsequent_indent=below) if use else []
        return "\n".join([space + command, *uses])
    space = " " * (indent if line.startswith(" ") else 0)
    pieces = textwrap.wrap(line, width, subsequent_indent=space, break_long_words=False, break_on_hyphens=False)
    return "\n".join(pieces)


def _width(stream: TextIO) -> int | None:
    """The columns of a terminal; None for anything else."""
    try:
        return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns) if stream.isatty() else None
    except (OSError, ValueError):  # a stream without a descriptor, or a terminal that says nothing
        return None
