"""trainbook convert"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trainbook.cli.shared import AsJson, RunsDir, Trust, reports_errors
from trainbook.terminal import echo

EXAMPLES = """[bold]Examples[/bold]

trainbook convert runs/first-try --to checkpoints/first-try

trainbook convert first-try --from checkpoints/first-try
"""


@reports_errors
def convert(
    run: Annotated[str, typer.Argument(help="The folder or the name of a run.", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Option(help="Write the run's checkpoint to this folder, for DeepSpeed's engine.load_checkpoint."),
    ] = None,
    origin: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Add a checkpoint to the run, from a folder of DeepSpeed's engine.save_checkpoint. It is a pickle, "
            "which can run any code: needs --trust.",
        ),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="With --to: latest, best, or a step.")] = "latest",
    runs_dir: RunsDir = Path("runs"),
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Convert a checkpoint to or from DeepSpeed's format: weights and optimizer state."""
    from trainbook.errors import UserError
    from trainbook.loop.export import from_deepspeed, to_deepspeed
    from trainbook.runs import RunFolder

    if (to is None) == (origin is None):
        raise UserError("pass either --to DIR or --from DIR.")
    folder = RunFolder.open(run, runs_dir)
    if to is not None:
        done = to_deepspeed(folder, to, checkpoint)
    else:
        assert origin is not None
        done = from_deepspeed(folder, origin)
    if as_json:
        from dataclasses import asdict

        from trainbook.cli.shared import print_json

        print_json(asdict(done))
        return
    what = f"step {done.step}, ZeRO stage {done.zero_stage} of one process, {done.parameters:,} parameters"
    if to is not None:
        echo(f"{done.folder}: {what}")
    else:
        echo(f"{folder.path}: a checkpoint from {done.folder}: {what}")
        echo(f"to resume: trainbook resume {shlex.quote(str(folder.path))}")
