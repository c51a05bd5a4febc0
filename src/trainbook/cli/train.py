"""trainbook train"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trainbook.cli.errors import reports_errors
from trainbook.loop.faults.kinds import KINDS, parse

EXAMPLES = """[bold]Examples[/bold]

trainbook train gpt-tiny

trainbook train my.yaml optimizer.learning_rate=3e-4 --name first-try

trainbook train gpt-tiny --inject nan-gradient@50 --inject kill@120 --name survivor
"""

Recipe = Annotated[str, typer.Argument(help="A packaged recipe's name, or a YAML file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value, as many as you like: optimizer.learning_rate=1e-3", show_default=False),
]
AcceptChanges = Annotated[
    bool, typer.Option("--accept-changes", help="Resume although the schedule or the batch changed.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer with JSON.")]
Inject = Annotated[
    list[str] | None,
    typer.Option(
        "--inject",
        metavar="KIND@STEP",
        help=f"Put a fault in on purpose, to see what becomes of it; as many as you like: {', '.join(KINDS)}.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no card.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="The folder of runs.")]


@reports_errors
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option("--name", help="The run's name; the same name again resumes it.")] = None,
    runs_dir: RunsDir = Path("runs"),
    resume: Annotated[
        Literal["auto", "never"],
        typer.Option("--resume", help="auto: a name that exists is resumed; never: it is refused."),
    ] = "auto",
    accept_changes: AcceptChanges = False,
    inject: Inject = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and train nothing.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a model, or go on with a run of the same name."""
    from trainbook.knobs import load, overrides_from_arguments, require_length

    parse(inject or [])
    loaded = load(recipe, overrides_from_arguments(overrides or []))
    require_length(loaded)
    if dry_run:
        from trainbook.data import open_sources
        from trainbook.data.request import reading_request
        from trainbook.data.tokenizers import tokenizer_config
        from trainbook.knobs.derive import task_name

        tokenizer_config(loaded.config.data.tokenizer, loaded.config.data.vocab_size)
        if request := reading_request(task_name(loaded.config)):
            open_sources(loaded.config.data, request)
        return _show(loaded, as_json)

    from trainbook import api

    result = api.train(
        loaded,
        recipe=recipe,
        name=name,
        runs_dir=runs_dir,
        resume=resume,
        accept_changes=accept_changes,
        quiet=quiet or as_json,
        inject=inject or [],
    )
    finish(result, as_json, quiet)


def _show(loaded: Any, as_json: bool) -> None:
    from rich.console import Console

    from trainbook.cli.output import print_json
    from trainbook.knobs import explain_config
    from trainbook.knobs.render import render_config

    if as_json:
        print_json(explain_config(loaded))
    else:
        render_config(explain_config(loaded), Console(), everything=True)


def finish(result: Any, as_json: bool, quiet: bool) -> None:
    """The card, or the same facts as JSON."""
    from trainbook.cli.output import print_json
    from trainbook.report import make_card

    if as_json:
        faults = result.run.read_manifest().injected_faults
        facts = {"run": str(result.run.path), "ended": result.ended, "best": result.best, "last": result.last}
        print_json({**facts, "injected_faults": faults})
    elif not quiet:
        with suppress(BrokenPipeError):
            typer.echo("")
            typer.echo(make_card(result.run).as_text())
