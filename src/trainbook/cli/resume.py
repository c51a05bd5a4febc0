"""trainbook resume"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainbook.cli import processes
from trainbook.cli.processes import MaxRestarts, Nproc
from trainbook.cli.shared import AcceptChanges, AsJson, Overrides, Quiet, RunsDir, Trust, reports_errors
from trainbook.cli.train import Inject, Timing, passed_on, print_result
from trainbook.loop.faults.kinds import must_suit_world, parse
from trainbook.start_up import measured_start_up

EXAMPLES = """[bold]Examples[/bold]

trainbook resume runs/first-try

trainbook resume first-try --nproc 4

trainbook resume first-try training.max_steps=2000 --accept-changes
"""


@reports_errors
def resume(
    run: Annotated[str, typer.Argument(help="The folder or the name of a run.", show_default=False)],
    overrides: Overrides = None,
    runs_dir: RunsDir = Path("runs"),
    accept_changes: AcceptChanges = False,
    inject: Inject = None,
    nproc: Nproc = 1,
    max_restarts: MaxRestarts = 0,
    timing: Timing = False,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Resume a run from its newest complete checkpoint, as if it had never stopped."""
    faults = parse(inject or [])
    if processes.are_to_be_started(nproc, max_restarts):
        must_suit_world(faults, nproc)
        from trainbook.runs import RunFolder

        RunFolder.find(run, runs_dir)  # if there is none, that is told before anything is started
        options = passed_on(runs_dir, accept_changes, inject, timing, as_json, quiet)
        processes.start(["resume", run, *(overrides or []), *options], nproc, max_restarts)
    if processes.is_restarted():  # the start before has met the faults
        inject = None

    with measured_start_up(timing):
        from trainbook import api
        from trainbook.knobs import overrides_from_arguments

        result = api.resume(
            run,
            overrides_from_arguments(overrides or []),
            runs_dir=runs_dir,
            accept_changes=accept_changes,
            quiet=quiet or as_json,
            inject=inject or [],
            trust=trust,
        )
    if as_json:
        print_result(result)
