"""The answer on a terminal: a line for each check, and of a failure its likely cause and what to try."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from trainbook.check.result import CheckResult
from trainbook.check.run import CheckReport
from trainbook.finding import print_finding
from trainbook.terminal import marked

MARKS = {"passed": "[green]ok[/green]  ", "failed": "[red]FAIL[/red]", "skipped": "[yellow]skip[/yellow]"}


def render(report: CheckReport, console: Console) -> None:
    for result in report.results:
        _render(result, console)
    console.print()
    _say(console, _what(report))
    for path, (asked, used) in report.changed.items():
        _say(console, f"  {path}: {_shown(asked)} -> {_shown(used)}", style="dim")
    counts = f"{report.count('passed')} passed, {report.count('failed')} failed, {report.count('skipped')} skipped"
    _say(console, f"{counts} in {report.seconds:.1f} s")


def _render(result: CheckResult, console: Console) -> None:
    outcome = result.outcome
    mark = marked(MARKS[outcome.status] + " {}  ", f"{result.check.name:<13}")
    print_finding(console, outcome, mark=mark, cause=outcome.cause)


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _what(report: CheckReport) -> str:
    model = report.model
    trained = model["parameters"] != model["trained"]
    part = f", {model['trained']:,} of them trainable" if trained else ""
    is_shrunk = any(path.startswith("model.") for path in report.changed)
    size = f"{'shrunk to ' if is_shrunk else ''}{model['parameters']:,} parameters{part}"
    rows = "" if model["full"] else ", on a part of the data (--full keeps the real sizes and reads everything)"
    return f"checked: {model['type']}, task {model['task']}, {size}{rows}."


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, soft_wrap=True, highlight=False, style=style)
