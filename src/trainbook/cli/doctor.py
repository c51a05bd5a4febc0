"""trainbook doctor"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainbook.cli.shared import AsJson, Overrides, RunsDir, Trust, reports_errors, worker_count
from trainbook.errors import UserError
from trainbook.terminal import echo

EXAMPLES = """[bold]Examples[/bold]

trainbook doctor runs/my-run

trainbook doctor my.yaml optimizer.learning_rate=0.1

trainbook doctor output/checkpoint-500/trainer_state.json --json

trainbook doctor runs/my-run --try --seeds 3
"""


@reports_errors
def doctor(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="The folder or name of a run, the log of another tool, a recipe, or a YAML file.",
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    try_it: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Find the cause by experiments, and try its remedy in a short run, next to a run without it.",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            help="With --try: the steps of each short run. By default a quarter of the run, or more if needed.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            min=0,
            help="With --try: the steps of all experiments together. By default as many as the run has; a first "
            "remedy is then tried in any case.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="With --try: the number of seeds.")] = 1,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            metavar="N|auto",
            help="With --try: the number of parallel runs. auto: eight for each GPU, or one for each core.",
            show_default=False,
        ),
    ] = None,
    finding: Annotated[
        str | None,
        typer.Option(
            "--finding",
            metavar="RULE",
            help="With --try: try the change that this finding suggests.",
            show_default=False,
        ),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also list the rules that were skipped, and what each of them needs.")
    ] = False,
    runs_dir: RunsDir = Path("runs"),
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Diagnose a run or a configuration: what is wrong, how certain that is, and what to try."""
    from trainbook.doctor import as_json as as_plain
    from trainbook.doctor import diagnose
    from trainbook.doctor.diagnose import open_subject
    from trainbook.knobs import overrides_from_arguments

    record = open_subject(what, runs_dir, overrides_from_arguments(overrides or []))
    for notice in record.notices:
        echo(f"notice: {notice}", err=True)
    diagnosis = diagnose(record)
    if try_it:
        from trainbook.cli.doctor_try import try_and_tell

        count = worker_count(workers) or 1
        return try_and_tell(
            what,
            record,
            diagnosis,
            rule=finding,
            steps=steps,
            budget=budget,
            seeds=seeds,
            workers=count,
            as_json=as_json,
        )
    if any(given is not None for given in (steps, budget, finding, workers)) or seeds != 1:
        raise UserError("--steps, --budget, --seeds, --workers and --finding need --try.")
    if as_json:
        from trainbook.cli.shared import print_json

        return print_json(as_plain(diagnosis))
    from trainbook.doctor.render import render
    from trainbook.terminal import new_console

    render(record, diagnosis, new_console(), show_all)
