"""trainbook export-metrics"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainbook.cli.shared import AsJson, RunsDir, reports_errors
from trainbook.terminal import echo

EXAMPLES = """[bold]Examples[/bold]

trainbook export-metrics first-try --to csv

trainbook export-metrics runs/first-try --to tensorboard --output logs/first-try

trainbook export-metrics output/trainer_state.json --to parquet
"""


@reports_errors
def export_metrics(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run's folder or name; also a trainer_state.json, TensorBoard events, a W&B run, a CSV of steps.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help="tensorboard, wandb, csv or parquet.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="PATH",
            help="The file to write, or the folder for tensorboard and wandb; it must not exist yet. By default it is "
            "named after the run.",
            show_default=False,
        ),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a run's metrics for other programs: TensorBoard, W&B (offline), CSV or Parquet."""
    from trainbook.report.metrics_out import export_metrics as export
    from trainbook.runs.record import open_record

    record = open_record(run, runs_dir)
    for notice in record.notices:
        echo(f"notice: {notice}", err=True)
    path = export(record, to, output)
    if as_json:
        from trainbook.cli.shared import print_json

        return print_json({"run": record.name, "format": to, "path": str(path)})
    echo(str(path))
    if to in NEXT:
        echo(f"  {NEXT[to].format(path)}")


NEXT = {"tensorboard": "tensorboard --logdir {}", "wandb": "wandb sync {}"}
