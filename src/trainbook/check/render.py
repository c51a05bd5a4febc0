"""The answer on a terminal. Failures come first, the most fundamental one at the top with its likely cause and what to
try, and what follows from it in a line each below; then remarks, and a line for each check that passed or was skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.text import Text

from trainbook.check.causes import failure_groups
from trainbook.check.result import CheckResult
from trainbook.check.run import CheckReport
from trainbook.finding import print_finding, print_hanging
from trainbook.terminal import marked

MARKS = {
    "passed": "[green]ok[/green]  ",
    "remark": "[yellow]note[/yellow]",
    "failed": "[red]FAIL[/red]",
    "skipped": "[yellow]skip[/yellow]",
}
NAME_WIDTH = 16


def render(report: CheckReport, console: Console) -> None:
    for group in failure_groups(report.results):
        _render(group.root, console)
        for result in group.consequences:
            _render_consequence(result, console)
    for status in ("remark", "passed"):
        for result in report.results:
            if result.outcome.status == status:
                _render(result, console)
    _render_skipped([result for result in report.results if result.outcome.status == "skipped"], console)
    console.print()
    _say(console, report.summary or _what(report))
    for path, (asked, used) in report.changed.items():
        _say(console, f"  {path}: {_shown(asked)} -> {_shown(used)}", style="dim")
    _say(console, f"{_counts(report)} in {report.seconds:.1f} s")


def _counts(report: CheckReport) -> str:
    causes, num_failed, num_remarks = (
        len(failure_groups(report.results)),
        report.count("failed"),
        report.count("remark"),
    )
    by_cause = f" ({causes} cause{'s' if causes > 1 else ''})" if causes < num_failed else ""
    remarks = f"{num_remarks} remark{'' if num_remarks == 1 else 's'}"
    return (
        f"{report.count('passed')} passed, {remarks}, {num_failed} failed{by_cause}, {report.count('skipped')} skipped"
    )


def _render(result: CheckResult, console: Console) -> None:
    outcome = result.outcome
    mark = marked(MARKS[outcome.status] + " {}  ", f"{result.check.name:<{NAME_WIDTH}}")
    print_finding(console, outcome, mark=mark, cause=outcome.cause)


def _render_consequence(result: CheckResult, console: Console) -> None:
    mark = marked("[dim]  └[/dim] {}  ", f"{result.check.name:<{NAME_WIDTH + 1}}")
    print_hanging(console, mark, Text(f"follows from {result.follows_from}: {result.outcome.evidence}", style="dim"))


def _render_skipped(results: Sequence[CheckResult], console: Console) -> None:
    """Those with the same reason in one line."""
    by_reason: dict[str, list[CheckResult]] = {}
    for result in results:
        by_reason.setdefault(result.outcome.evidence, []).append(result)
    for reason, (first, *others) in by_reason.items():
        also = f" (also {', '.join(each.check.name for each in others)})" if others else ""
        _render(replace(first, outcome=replace(first.outcome, evidence=reason + also)), console)


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
