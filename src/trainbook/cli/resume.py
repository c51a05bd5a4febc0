"""trainbook resume"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainbook.cli.errors import reports_errors
from trainbook.cli.train import AcceptChanges, AsJson, Inject, Overrides, Quiet, RunsDir, finish

EXAMPLES = """[bold]Examples[/bold]

trainbook resume runs/first-try

trainbook resume first-try training.max_steps=2000 --accept-changes
"""


@reports_errors
def resume(
    run: Annotated[str, typer.Argument(help="A run folder, or a run's name.", show_default=False)],
    overrides: Overrides = None,
    runs_dir: RunsDir = Path("runs"),
    accept_changes: AcceptChanges = False,
    inject: Inject = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Go on with a run from its newest complete checkpoint, as if it had never stopped."""
    from trainbook import api
    from trainbook.knobs import overrides_from_arguments

    result = api.resume(
        run,
        overrides_from_arguments(overrides or []),
        runs_dir=runs_dir,
        accept_changes=accept_changes,
        quiet=quiet or as_json,
        inject=inject or [],
    )
    finish(result, as_json, quiet)
