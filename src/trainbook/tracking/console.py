"""What the terminal shows: a progress bar where there is one, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from trainbook.runs.schema import EVENTS, judgements

_STYLES = {"info": "cyan", "warning": "yellow", "error": "bold red"}


class ConsoleTracker:
    def __init__(self, total_steps: int, *, start_step: int = 0, console: Console | None = None) -> None:
        self._total_steps = total_steps
        self._console = console or Console()
        self._eta = Eta()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if self._console.is_terminal and not self._console.is_dumb_terminal and not self._console.is_jupyter:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[numbers]}", markup=False),
                console=self._console,
                expand=True,
            )
            self._task = self._bar.add_task(
                f"step {start_step}/{total_steps}", total=total_steps, completed=start_step, numbers=""
            )
            self._bar.start()

    def log_metrics(self, row: Mapping[str, Any]) -> None:
        if row["split"] == "eval":
            self._print(evaluation_line(row), style="bold")
            return
        # Skipped updates are made up for, so the run takes that many attempts more.
        total = self._total_steps + (row.get("skipped_updates") or 0)
        seconds_left = self._eta.seconds_left(row, total)
        if self._bar is None or self._task is None:
            self._print(f"step{row['step']:>7}/{total}  {numbers_line(row, seconds_left)}")
        else:
            self._bar.update(
                self._task,
                description=f"step {row['step']}/{total}",
                completed=row["step"],
                total=total,
                numbers=numbers_line(row, seconds_left),
            )

    def log_event(self, row: Mapping[str, Any]) -> None:
        event = EVENTS[row["kind"]]
        if event.shown:
            label = row["kind"].replace("_", " ")
            self._print(f"{label:<4}{row['step']:>7}  {row.get('reason') or event.meaning}", _STYLES[event.level])

    def close(self, status: str) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, line: str, style: str = "") -> None:
        # Text, because a reason may hold [brackets]; soft wrap, because a log file has no width.
        self._console.print(Text(line, style=style), soft_wrap=True, highlight=False)


class Eta:
    """Time left, from the rows' own times, so that evaluations and checkpoints are part of it."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def seconds_left(self, row: Mapping[str, Any], total_steps: int) -> float | None:
        step, time = row["step"], row["time"]
        if self._first is None:
            self._first = (step, time)
        first_step, first_time = self._first
        seconds_per_step = (time - first_time) / (step - first_step) if step > first_step else row.get("step_seconds")
        return None if seconds_per_step is None else seconds_per_step * max(0, total_steps - step)


def numbers_line(row: Mapping[str, Any], seconds_left: float | None) -> str:
    parts = []
    if (loss := row.get("loss")) is not None:
        parts.append(f"loss {fixed(loss, 4)}")
    if (rate := row.get("learning_rate")) is not None:
        parts.append(f"lr {rate:.1e}")
    if (norm := row.get("grad_norm")) is not None:
        parts.append(f"norm {fixed(norm, 2)}")
    if (speed := row.get("tokens_per_second")) is not None:
        parts.append(f"{speed:,.0f} tok/s")
    if seconds_left is not None:
        parts.append(f"eta {clock(seconds_left)}")
    return "  ".join(parts)


def evaluation_line(row: Mapping[str, Any]) -> str:
    parts = [f"eval{row['step']:>7}"]
    for metric, value in judgements(row):
        parts.append(f"{metric.name.replace('_', ' ')} {fixed(value, 2 if metric.name == 'perplexity' else 4)}")
    if row.get("best"):
        parts.append("best")
    return "  ".join(parts)


def fixed(value: float, decimals: int) -> str:
    """Fixed point while that is readable; NaN stays nan."""
    return f"{value:.3e}" if abs(value) >= 1e6 and abs(value) != float("inf") else f"{value:.{decimals}f}"


def clock(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
