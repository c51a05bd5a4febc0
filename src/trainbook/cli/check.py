"""trainbook check"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from trainbook.cli.shared import AsJson, Overrides, Trust, reports_errors
from trainbook.errors import Interrupted, UserError

if TYPE_CHECKING:
    from trainbook.check.run import Begin, CheckReport

EXAMPLES = """[bold]Examples[/bold]

trainbook check gpt-tiny

trainbook check my.yaml model.type=my_models:Recurrent --only causal_leak,padding

trainbook check my.yaml --full --json

trainbook check --kernels
"""


@reports_errors
def check(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="The name of a packaged recipe, or a YAML or Python file. --kernels needs none.", show_default=False
        ),
    ] = None,
    overrides: Overrides = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Keep the real sizes, use the real device and read all the data. Takes longer."),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="NAMES", help="Run only these checks, such as causal_leak,padding; or only these kernels."
        ),
    ] = None,
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels",
            help="Compare the kernels of this machine with exact results, on inputs that are hard for them. Training "
            "then does without an attention kernel that failed. With a recipe: in its types and shape.",
        ),
    ] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Check model and data before a long run, for wiring mistakes, leaks and unusable data.

    They run on a shrunk model with the same settings and on a sample of the real data. Exit code 1: a check failed.
    """
    if kernels and full:
        raise UserError("--full: has no meaning with --kernels, which reads no data.")
    if recipe is None and not kernels:
        raise UserError("check: name a recipe or a configuration file, as in: trainbook check gpt-tiny")
    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    try:
        report = _of_kernels(recipe, overrides, names) if kernels else _of_model(str(recipe), overrides, names, full)
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


def _of_model(recipe: str, overrides: list[str] | None, names: list[str], full: bool) -> CheckReport:
    from trainbook.knobs import load, overrides_from_arguments, require_length
    from trainbook.runs.kinds import must_describe_a_run

    must_describe_a_run(recipe)
    loaded = load(recipe, overrides_from_arguments(overrides or []))
    require_length(loaded)

    from trainbook.runs.trust import require_trust_of_file

    require_trust_of_file(recipe, loaded)

    from trainbook.check.run import run_checks, selected

    selected(names)  # a wrong name is told before anything is read
    with _progress() as begin:
        return run_checks(loaded.config, only=names, full=full, begin=begin)


def _of_kernels(recipe: str | None, overrides: list[str] | None, names: list[str]) -> CheckReport:
    """No code that a configuration names is imported, and its data is not read."""
    config = None
    if recipe is not None:
        from trainbook.knobs import load, overrides_from_arguments
        from trainbook.runs.kinds import must_describe_a_run

        must_describe_a_run(recipe)
        config = load(recipe, overrides_from_arguments(overrides or [])).config

    from trainbook.check.kernels.run import check_kernels

    with _progress() as begin:
        return check_kernels(config, only=names, begin=begin)


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
