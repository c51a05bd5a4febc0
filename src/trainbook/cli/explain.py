"""trainbook explain"""

from __future__ import annotations

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
        typer.Argument(help="A knob by any of its names, a section, a recipe or a YAML file.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="The JSON schema of configuration files, for editors.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Of a configuration: the untouched defaults too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a knob does and when to turn it; or of a configuration, where each value comes from."""
    from pathlib import Path

    from rich.console import Console

    from trainbook.cli.output import print_json
    from trainbook.knobs import (
        explain_config,
        explain_knob,
        explain_section,
        json_schema,
        load,
        overrides_from_arguments,
        recipes,
        section_types,
    )
    from trainbook.knobs.render import render_config, render_knob, render_section

    if schema:
        print_json(json_schema())
        return
    if what is None and as_json:
        print_json({name: explain_section(name) for name in section_types()})
    elif what is None:
        for name in section_types():
            render_section(explain_section(name), Console())
    elif what in section_types():
        _answer(explain_section(what), render_section, as_json)
    elif what in recipes.names() or what.endswith((".yaml", ".yml")) or Path(what).is_file():
        loaded = load(what, overrides_from_arguments(overrides or []))
        answer = explain_config(loaded)
        if as_json:
            print_json(answer)
        else:
            render_config(answer, Console(), everything)
    else:
        _answer(explain_knob(what), render_knob, as_json)


def _answer(facts: dict[str, Any], render: Callable[[dict[str, Any], Console], None], as_json: bool) -> None:
    from rich.console import Console

    from trainbook.cli.output import print_json

    if as_json:
        print_json(facts)
    else:
        render(facts, Console())
