"""Terminal output: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

from trainbook.runs.schema import EVENTS, fixed, judgements
from trainbook.runs.skipped import made_up_for
from trainbook.terminal import new_console

# The line at the bottom of a terminal: step, bar, numbers and time left, on one line at any width.


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


_STYLES = {"info": "cyan", "warning": "yellow", "error": "bold red"}


class ConsoleTracker:
    def __init__(
        self, total_steps: int, *, start_step: int = 0, console: Console | None = None, counted: str = "tokens"
    ) -> None:
        self._total_steps, self._counted = total_steps, counted
        self._console = console or new_console()
        self._eta = Eta()
        self._line = StatusLine(start_step, total_steps)
        self._live: Live | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal and not self._console.is_jupyter:
            self._live = Live(self._line, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        self._line.activity = ""
        if row["split"] == "eval":
            self._print(evaluation_line(row), style="bold")
            return
        # Skipped updates are made up for, so the run takes that many attempts more.
        total = self._total_steps + made_up_for(row)
        parts = number_parts(row, self._eta.seconds_left(row, total), self._counted)
        if self._live is None:
            self._print("  ".join([f"step{row['step']:>7}/{total}", *(part.text for part in parts)]))
        else:
            self._line.step, self._line.total, self._line.numbers = row["step"], total, parts

    def show_activity(self, text: str) -> None:
        """Show what is running between two rows; plain-line output omits it."""
        self._line.activity = text

    def log_event(self, row: Mapping[str, Any]) -> None:
        event = EVENTS[row["kind"]]
        if event.shown:
            label = row["kind"].replace("_", " ")
            self._print(f"{label:<4}{row['step']:>7}  {row.get('reason') or event.meaning}", _STYLES[event.level])

    def close(self, status: str) -> None:
        if self._live is not None:
            self._live.stop()  # and takes the line away: what comes next says how it ended
            self._live = None

    def _print(self, line: str, style: str = "") -> None:
        # Text, because a reason may hold [brackets]; a log file has no width, a terminal breaks lines between words.
        self._console.print(Text(line, style=style), soft_wrap=not self._console.is_terminal, highlight=False)


class Eta:
    """Time left, from the rows' own times, so that evaluations and checkpoints are part of it."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._last_step = 0

    def seconds_left(self, row: Mapping[str, Any], total_steps: int) -> float | None:
        step, time = row["step"], row["time"]
        if self._first is None or step < self._last_step:  # after a rollback, from there
            self._first = (step, time)
        self._last_step = step
        first_step, first_time = self._first
        seconds_per_step = (time - first_time) / (step - first_step) if step > first_step else row.get("step_seconds")
        return None if seconds_per_step is None else seconds_per_step * max(0, total_steps - step)


def number_parts(row: Mapping[str, Any], seconds_left: float | None, counted: str = "tokens") -> list[StatusPart]:
    parts = []
    if (loss := row.get("loss")) is not None:
        parts.append(StatusPart(f"loss {fixed(loss, 4)}", 2))
    if (rate := row.get("learning_rate")) is not None:
        parts.append(StatusPart(f"lr {rate:.1e}", 4))
    if (norm := row.get("grad_norm")) is not None:
        parts.append(StatusPart(f"norm {fixed(norm, 2)}", 5))
    if (speed := row.get("tokens_per_second")) is not None:
        text = f"{speed:,.0f} tok/s" if counted == "tokens" else f"{speed:,.4g} {counted}/s"
        parts.append(StatusPart(text, 3))
    if seconds_left is not None:
        parts.append(StatusPart(f"eta {clock(seconds_left)}", 0))
    return parts


def evaluation_line(row: Mapping[str, Any]) -> str:
    parts = [f"eval{row['step']:>7}"]
    for metric, value in judgements(row):
        parts.append(f"{metric.name.replace('_', ' ')} {fixed(value, 2 if metric.name == 'perplexity' else 4)}")
    if row.get("best"):
        parts.append("best")
    return "  ".join(parts)


def clock(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
