"""trainbook check"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from trainbook.cli.shared import AsJson, Overrides, Recipe, Trust, reports_errors
from trainbook.errors import Interrupted

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
    from trainbook.runs.kinds import must_describe_a_run

    must_describe_a_run(recipe)
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
        from trainbook.check.render import render
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
