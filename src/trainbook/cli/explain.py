"""trainbook explain"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainbook.cli.errors import reports_errors
from trainbook.cli.train import AsJson, Overrides

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """[bold]Examples[/bold]

trainbook explain learning_rate

trainbook explain my.yaml optimizer.learning_rate=3e-4
"""


@reports_errors
def explain(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A knob (hyperparameter) by any of its names, a section, a recipe, or a YAML or Python file.",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of configuration files, for editors.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="For a configuration: show the defaults too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Explain what a knob (hyperparameter) does and when to change it, or where a configuration's values come from."""
    from trainbook.knobs import explain_knob, explain_section, json_schema, recipes, section_types
    from trainbook.knobs.render import render_knob, render_section

    if schema:
        _print(json_schema())
    elif what is None and as_json:
        _print({name: explain_section(name) for name in section_types()})
    elif what is None:
        for name in section_types():
            _answer(explain_section(name), render_section, as_json)
    elif what in section_types():
        _answer(explain_section(what), render_section, as_json)
    elif what in recipes.names() or what.endswith((".yaml", ".yml", ".json", ".py")) or os.path.isfile(what):
        _explain_file(what, overrides or [], everything, as_json)
    else:
        _answer(explain_knob(what), render_knob, as_json)


def _explain_file(source: str, overrides: list[str], everything: bool, as_json: bool) -> None:
    from trainbook.knobs import explain_config, load, overrides_from_arguments
    from trainbook.knobs.render import render_config

    facts = explain_config(load(source, overrides_from_arguments(overrides)))
    _answer(facts, lambda shown, console: render_config(shown, console, everything), as_json)


def _answer(facts: dict[str, Any], render: Callable[[dict[str, Any], Console], None], as_json: bool) -> None:
    if as_json:
        return _print(facts)
    from rich.console import Console

    render(facts, Console())


def _print(facts: dict[str, Any]) -> None:
    from trainbook.cli.output import print_json

    print_json(facts)
