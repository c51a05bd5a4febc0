"""trainbook data"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainbook.cli.shared import AsJson, Overrides, reports_errors
from trainbook.errors import Interrupted, UserError
from trainbook.terminal import echo

if TYPE_CHECKING:
    from trainbook.data.report.build import ReadProgress
    from trainbook.knobs import Loaded

EXAMPLES = """[bold]Examples[/bold]

trainbook data reviews.csv --task classify

trainbook data my.yaml data.max_seq_length=128 --picture data.png
"""

# Which kind of model to suppose where only a source is named: what fits in memory depends on it.
MODEL_OF_TASK = {"masked": "bert", "classify": "bert", "classify_many": "bert", "regress": "bert", "tag": "bert"} | {
    "span": "t5",
    "seq2seq": "t5",
}


@reports_errors
def data(
    source: Annotated[
        str, typer.Argument(help="Anything that data.source accepts, or a recipe or YAML file.", show_default=False)
    ],
    overrides: Overrides = None,
    task: Annotated[
        str | None, typer.Option("--task", help="The task that the data is for: causal, classify, tag, seq2seq, …")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Save a figure with four panels to this file (.png).")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", min=1, help="The number of documents to sample from each split for the closer analysis."
        ),
    ] = 20_000,
    as_json: AsJson = False,
) -> None:
    """Report on a dataset: lengths, padding, duplicates, distribution shift, labels, anomalies, fitting settings."""
    if picture is not None:
        from trainbook.charts.figure import check_path

        check_path(picture)
    given = _given(overrides or [], task)
    loaded, is_recipe = _load(source, given)

    from trainbook.data.report.build import report_on
    from trainbook.loop.build import request_of

    try:
        with _progress() as progress:
            facts = report_on(loaded.config, request_of(loaded.config), limit, progress)
    except KeyboardInterrupt:
        raise Interrupted("interrupted: nothing was written") from None
    if picture is not None:
        from trainbook.charts.data import draw_data

        draw_data(facts, picture)
    _answer(facts, _command(source, given, facts) if is_recipe else None, as_json)
    if picture is not None:
        echo(f"picture: {picture}", err=True)


def _given(overrides: list[str], task: str | None) -> list[str]:
    from trainbook.knobs import overrides_from_arguments

    return overrides_from_arguments(overrides) + ([f"training.task={task}"] if task else [])


def _load(source: str, given: list[str]) -> tuple[Loaded, bool]:
    """The configuration, and whether it was named; otherwise the defaults with this source."""
    from trainbook.knobs import load, recipes

    if source in recipes.names() or source.endswith((".yaml", ".yml")):
        return load(source, given), True
    base: dict[str, Any] = {"data": {"source": source}}
    if (task := _task(given)) in MODEL_OF_TASK:
        base["model"] = {"type": MODEL_OF_TASK[task]}
    return load(base, given), False


def _task(given: list[str]) -> str:
    """The task that overrides name, by whichever of its names: `regression` is regress. A label's field means classify,
    as it does in training."""
    from trainbook.knobs.aliases import by_path

    task = _value(given, "training.task").strip().lower()
    task = by_path()["training.task"].knob.value_aliases.get(task, task)
    has_label = _value(given, "data.label_field") not in ("", "null")
    return "classify" if task in ("", "auto") and has_label else task


def _value(given: list[str], path: str) -> str:
    """The last value that overrides give to a knob, by whichever of its names; empty if there is none."""
    from trainbook.knobs.aliases import knobs_named

    pairs = (each.partition("=") for each in given)
    values = [value for key, _, value in pairs if path in {knob.path for knob in knobs_named(key)}]
    return values[-1] if values else ""


def _command(source: str, given: list[str], facts: dict[str, Any]) -> str | None:
    """To train with all that is advised, in place of what was given for the same knobs; None: nothing is advised."""
    from trainbook.data.report.findings import overrides
    from trainbook.knobs import explain_knob

    advised = overrides(facts["findings"])
    if not advised:
        return None
    changed = {override.partition("=")[0] for override in advised}

    def stays(override: str) -> bool:
        try:
            return explain_knob(override.partition("=")[0])["path"] not in changed
        except UserError:  # a name of several knobs, such as betas: none of them is about data
            return True

    kept = [override for override in given if stays(override)]
    return shlex.join(["trainbook", "train", source, *kept, *advised])


def _answer(facts: dict[str, Any], command: str | None, as_json: bool) -> None:
    if as_json:
        from trainbook.cli.shared import print_json

        return print_json(facts)
    from trainbook.data.report.render import render
    from trainbook.terminal import new_console

    render(facts, new_console(), command)


@contextmanager
def _progress() -> Iterator[ReadProgress]:
    """A line on the terminal that says what is being worked on; nothing where nobody looks."""
    from trainbook.data.report.build import Silent

    if not sys.stderr.isatty():
        yield Silent()
        return
    from rich.progress import BarColumn, DownloadColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar

    from trainbook.terminal import new_console

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn()
    with Bar(*columns, console=new_console(stderr=True), transient=True) as bar:
        line = bar.add_task("reading", total=None)

        class Shown:
            def begin(self, stage: str, total: int | None = None) -> None:
                bar.reset(line, description=stage, total=total, completed=0)

            def advance(self, count: int) -> None:
                bar.advance(line, count)

        yield Shown()
