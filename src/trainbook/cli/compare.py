"""trainbook compare"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trainbook.cli.options import Verb
from trainbook.cli.shared import AsJson, RunsDir, reports_errors
from trainbook.terminal import echo

EXAMPLES = """[bold]Examples[/bold]

trainbook compare baseline lower-rate

trainbook compare runs/a runs/b runs/c --metric accuracy --by tokens --picture curves.png

trainbook compare baseline lower-rate --html lower-rate.html

trainbook compare my-run output/checkpoint-500/trainer_state.json wandb/latest-run metrics.csv
"""


class WithPage(Verb):
    """`--html` needs no file: what follows it is one unless it is another option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--html") + 1 if "--html" in args else 0
        if at and (at == len(args) or args[at].startswith("-")):
            args = [*args[:at], "compare.html", *args[at:]]
        return super().parse_args(ctx, args)


@reports_errors
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Names or folders of runs; also a trainer_state.json, TensorBoard events, a W&B run, a CSV of steps. "
            "The first one is the baseline.",
            show_default=False,
        ),
    ],
    metric: Annotated[
        str,
        typer.Option(
            "--metric", help="The metric: loss, accuracy, grad_norm, … Prefix train_ or eval_ to choose the split."
        ),
    ] = "loss",
    by: Annotated[
        Literal["steps", "tokens", "time", "epochs"],
        typer.Option("--by", help="Compare at equal steps, tokens, time or epochs."),
    ] = "steps",
    picture: Annotated[Path | None, typer.Option("--picture", help="Save the curves to this file (.png).")] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="[FILE]", help="Write a page, compare.html if no file is named, with charts and tables."
        ),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Compare runs: their final metrics, the settings in which they differ, and what the difference shows."""
    from trainbook.report.compare import compare as compare_records
    from trainbook.report.compare_view import as_json as answer_of
    from trainbook.report.compare_view import render
    from trainbook.runs.record import open_record

    if picture is not None:
        from trainbook.charts.figure import check_path

        check_path(picture)
    if html is not None:
        from trainbook.report.compare_page import check_html

        check_html(html)
    records = [open_record(run, runs_dir) for run in runs]
    for notice in [notice for record in records for notice in record.notices]:
        echo(f"notice: {notice}", err=True)
    comparison = compare_records(records, metric, by)
    answer = answer_of(comparison)
    if picture is not None:
        from trainbook.charts.figure import draw_comparison

        draw_comparison(answer, picture)
    if html is not None:
        from trainbook.report.compare_page import write_page

        write_page(comparison, html)
    if as_json:
        from trainbook.cli.shared import print_json

        print_json(answer)
    else:
        from trainbook.terminal import new_console

        render(comparison, new_console())
    if picture is not None:
        echo(f"picture: {picture}", err=True)
    if html is not None:
        echo(f"page: {html}", err=True)
