"""The answer on a terminal: a line for each check, and of a failure its likely cause and what to try."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from rich.console import Console

from trainbook.check.result import CheckResult
from trainbook.check.run import CheckReport
from trainbook.terminal import marked

MARKS = {"passed": "[green]ok[/green]  ", "failed": "[red]FAIL[/red]", "skipped": "[yellow]skip[/yellow]"}
INDENT = 20  # columns of a check's mark and name
LABEL = "likely: "


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
    first, *others = _lines(outcome.evidence, console, INDENT)
    mark = MARKS[outcome.status]
    console.print(marked(mark + " {}  {}", f"{result.check.name:<13}", first), soft_wrap=True, highlight=False)
    for line in others:
        _say(console, " " * INDENT + line)
    if outcome.status != "failed":
        return
    for label, text in (("likely:", outcome.cause), ("try:", outcome.advice), ("", outcome.override or "")):
        for number, line in enumerate(_lines(text, console, INDENT + len(LABEL)) if text else ()):
            _say(console, f"{'':{INDENT}}{label if number == 0 else '':<{len(LABEL)}}{line}")


def _lines(text: str, console: Console, indent: int) -> list[str]:
    """On a terminal as wide as there is room for; in a file all in one, which a program finds more easily."""
    if not console.is_terminal or console.width - indent < INDENT:
        return [text]
    return wrap(text, console.width - indent, break_long_words=False, break_on_hyphens=False)


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
