"""The answer on a terminal: a line for each check, and of a failure its likely cause and what to try."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from trainbook.check.result import Result
from trainbook.check.run import Report

MARKS = {"passed": "[green]ok[/green]  ", "failed": "[red]FAIL[/red]", "skipped": "[yellow]skip[/yellow]"}
INDENT = " " * 20


def render(report: Report, console: Console) -> None:
    for result in report.results:
        _render(result, console)
    console.print()
    _say(console, _what(report))
    for path, (asked, used) in report.changed.items():
        _say(console, f"  {path}: {asked} -> {used}", style="dim")
    counts = f"{report.count('passed')} passed, {report.count('failed')} failed, {report.count('skipped')} skipped"
    _say(console, f"{counts} in {report.seconds:.1f} s")


def _render(result: Result, console: Console) -> None:
    outcome = result.outcome
    mark = MARKS[outcome.status]
    console.print(f"{mark} {result.check.name:<13}  {escape(outcome.evidence)}", soft_wrap=True, highlight=False)
    if outcome.status != "failed":
        return
    _say(console, f"{INDENT}likely: {outcome.cause}")
    _say(console, f"{INDENT}try:    {outcome.advice}")
    if outcome.override:
        _say(console, f"{INDENT}        {outcome.override}")


def _what(report: Report) -> str:
    model = report.model
    trained = model["parameters"] != model["trained"]
    part = f", {model['trained']:,} of them trained" if trained else ""
    is_shrunk = any(path.startswith("model.") for path in report.changed)
    size = f"{'shrunk to ' if is_shrunk else ''}{model['parameters']:,} parameters{part}"
    rows = "" if model["full"] else ", on some rows of the data (--full keeps the sizes and reads all)"
    return f"checked: {model['type']}, task {model['task']}, {size}{rows}."


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(escape(text), soft_wrap=True, highlight=False, style=style)
