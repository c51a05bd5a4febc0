"""trainbook check"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from trainbook.check.result import CheckResult
from trainbook.check.run import CheckReport
from trainbook.cli.shared import AsJson, Overrides, Recipe, Trust, reports_errors
from trainbook.errors import Interrupted
from trainbook.finding import print_finding
from trainbook.terminal import marked

if TYPE_CHECKING:
    from trainbook.check.run import Begin


EXAMPLES = """[bold]Examples[/bold]

trainbook check gpt-tiny

trainbook check my.yaml model.type=my_models:Recurrent --only causal_leak,padding

trainbook check my.yaml --full --json
"""


@reports_errors
def check(
    recipe: Recipe,
    overrides: Overrides = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Keep the real sizes, use the real device and read all the data. Takes longer."),
    ] = False,
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAMES", help="Run only these checks, such as causal_leak,padding.")
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Check model and data before a long run, for wiring mistakes, leaks and unusable data.

    They run on a shrunk model with the same settings and on a sample of the real data. Exit code 1: a check failed.
    """
    from trainbook.knobs import load, overrides_from_arguments, require_length

    loaded = load(recipe, overrides_from_arguments(overrides or []))
    require_length(loaded)

    from trainbook.runs.trust import require_trust_of_file

    require_trust_of_file(recipe, loaded)

    from trainbook.check.run import run_checks, selected

    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    selected(names)  # a wrong name is told before anything is read
    try:
        with _progress() as begin:
            report = run_checks(loaded.config, only=names, full=full, begin=begin)
    except KeyboardInterrupt:
        raise Interrupted("interrupted: nothing was written") from None
    if as_json:
        from trainbook.cli.shared import print_json

        print_json(report.as_json())
    else:
        from trainbook.terminal import new_console

        render(report, new_console())
    if report.count("failed"):
        raise typer.Exit(1)


@contextmanager
def _progress() -> Iterator[Begin]:
    """A line on the terminal that says what is being checked; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield lambda name, number, total: None
        return
    from rich.text import Text

    from trainbook.terminal import new_console

    with new_console(stderr=True).status("building") as line:
        yield lambda name, number, total: line.update(Text(f"{number} of {total}: {name}"))


# The answer on a terminal: a line for each check, and of a failure its likely cause and what to try.


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
