"""The line at the bottom of a terminal: step, bar, numbers and time left, on one line at any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions
from rich.text import Text

SHORTEST_BAR = 8
LONGEST_BAR = 60


@dataclass
class StatusPart:
    text: str
    importance: int  # 0: the last one to be left out where the terminal is narrow


@dataclass
class StatusLine:
    step: int
    total: int
    numbers: Sequence[StatusPart] = field(default_factory=list)
    activity: str = ""  # what takes its time just now, such as "evaluating 3/13"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield self.fitted(options.max_width - len("^C "))  # which a terminal adds, and the line must not break

    def fitted(self, width: int) -> Text:
        """At most `width` columns: the bar gives way first, then the least important numbers."""
        step = f"step {self.step}/{self.total}"
        parts = [StatusPart(self.activity, 1), *self.numbers] if self.activity else list(self.numbers)
        while parts and len(_joined(step, parts)) > width:
            parts.remove(max(parts, key=lambda part: part.importance))
        room = min(width - len(_joined(step, parts)) - 1, LONGEST_BAR)
        line = Text(step, style="bold", no_wrap=True, overflow="crop", end="")
        if room >= SHORTEST_BAR:
            done = round(room * min(1.0, self.step / self.total)) if self.total else room
            line.append(" ").append("━" * done, style="green").append("─" * (room - done), style="dim")
        for part in parts:
            line.append(f"  {part.text}", style="cyan" if part.text == self.activity else "not bold")
        return line


def _joined(step: str, parts: Sequence[StatusPart]) -> str:
    return "  ".join([step, *(part.text for part in parts)])
