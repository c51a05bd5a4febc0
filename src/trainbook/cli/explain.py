"""trainbook explain"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainbook.cli.shared import AsJson, Overrides, reports_errors

if TYPE_CHECKING:
    from rich.console import Console

    from trainbook.knobs import Loaded

EXAMPLES = """[bold]Examples[/bold]

trainbook explain learning_rate

trainbook explain "loss spikes"

trainbook explain my.yaml optimizer.learning_rate=3e-4
"""


@reports_errors
def explain(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A knob (hyperparameter) by any of its names, a technique (rmsnorm), a symptom (loss spikes), a "
            "section, a recipe, or a YAML or Python file.",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of configuration files, for editors.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="For a configuration: show the defaults too; for a symptom, all of its knobs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Explain a knob (hyperparameter), a technique or a symptom, or where a configuration's values come from."""
    from trainbook.errors import UserError
    from trainbook.knobs import explain_knob, explain_section, json_schema, recipes, section_types
    from trainbook.knobs.explain import render_knob, render_section, render_topic
    from trainbook.knobs.topics import knob_in_words

    is_a_configuration = what is not None and (
        what in recipes.names() or what.endswith((".yaml", ".yml", ".json", ".py")) or os.path.isfile(what)
    )
    are_words = overrides and not any("=" in each or each.startswith("-") for each in overrides)
    if what is not None and overrides and are_words and not is_a_configuration:
        what, overrides = " ".join([what, *overrides]), None  # without quotes
    if overrides and not is_a_configuration:
        raise UserError(f"{overrides[0]}: has no effect here: only a recipe or a configuration file can be changed.")
    if schema:
        _print(json_schema())
    elif what is None and as_json:
        _print({name: explain_section(name) for name in section_types()})
    elif what is None:
        for name in section_types():
            _answer(explain_section(name), render_section, as_json)
    elif what in section_types():
        _answer(explain_section(what), render_section, as_json)
    elif is_a_configuration:
        _explain_file(what, overrides or [], everything, as_json)
    elif (topic := _topic(what)) is not None:
        _answer(topic, lambda facts, console: render_topic(facts, console, everything), as_json)
    else:
        _answer(explain_knob(knob_in_words(what) or what), render_knob, as_json)


def _topic(name: str) -> dict[str, Any] | None:
    """A technique or a symptom, if it is no knob; of a symptom, with the causes that the doctor looks for."""
    from trainbook.knobs.aliases import SPECIAL, knobs_named
    from trainbook.knobs.topics import explain_topic, knob_in_words

    if name in SPECIAL or knobs_named(name) or knob_in_words(name):
        return None
    facts = explain_topic(name)
    if facts is not None and facts["kind"] == "symptom":
        from trainbook.doctor.causes import CAUSES
        from trainbook.doctor.rule import all_rules

        named = dict.fromkeys(
            cause for rule in all_rules().values() if rule.symptom == facts["topic"] for cause in rule.causes
        )
        facts["causes"] = [
            {"cause": name, "sentence": CAUSES[name].sentence, "remedy": CAUSES[name].remedy, "knob": CAUSES[name].knob}
            for name in named
        ]
    return facts


def _explain_file(source: str, overrides: list[str], everything: bool, as_json: bool) -> None:
    from trainbook.knobs import explain_config, load, overrides_from_arguments
    from trainbook.knobs.explain import render_config

    loaded = load(source, overrides_from_arguments(overrides))
    facts = explain_config(loaded, _stated_by_a_run(source, loaded))
    _answer(facts, lambda shown, console: render_config(shown, console, everything), as_json)


def _stated_by_a_run(source: str, loaded: Loaded) -> dict[str, str] | None:
    """The configuration of a run states behind each value where it came from; None for any other file."""
    from trainbook.bounded.files import read_text
    from trainbook.knobs.dumping import origins_in
    from trainbook.runs import RunFolder

    run = RunFolder(Path(source).parent)
    if Path(source).name != run.config.name or not run.config.is_file() or not run.manifest.is_file():
        return None
    return origins_in(read_text(run.config), loaded)


def _answer(facts: dict[str, Any], render: Callable[[dict[str, Any], Console], None], as_json: bool) -> None:
    if as_json:
        return _print(facts)
    from trainbook.terminal import new_console

    render(facts, new_console())


def _print(facts: dict[str, Any]) -> None:
    from trainbook.cli.shared import print_json

    print_json(facts)
