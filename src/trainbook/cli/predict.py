"""trainbook predict"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from trainbook.cli.shared import AsJson, Quiet, RunsDir, Trust, reports_errors
from trainbook.terminal import echo, write

EXAMPLES = """[bold]Examples[/bold]

trainbook predict runs/first-try new.jsonl --output predictions.jsonl

trainbook predict first-try sentences.txt --checkpoint latest
"""


@reports_errors
def predict(
    run: Annotated[str, typer.Argument(help="The folder or the name of a run.", show_default=False)],
    file: Annotated[
        str,
        typer.Argument(
            help="A file of records, in any format that data.source accepts. In plain text, each line is a record.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="The file to write, one JSON object per line. By default, print them."),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="The checkpoint: best, latest, or a step.")] = "best",
    text_field: Annotated[str | None, typer.Option(help="The field with the text, if it is not recognized.")] = None,
    label_field: Annotated[str | None, typer.Option(help="The field with the right answer, if there is one.")] = None,
    num_beams: Annotated[int | None, typer.Option(help="For generated answers: the number of beams.")] = None,
    device: Annotated[str, typer.Option(help="The device: auto, cpu or cuda.")] = "auto",
    runs_dir: RunsDir = Path("runs"),
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict an answer for each record of a file. If the file has the right answers, report the metrics."""
    from trainbook.cli.shared import print_json
    from trainbook.loop.predict import predict as predict_file
    from trainbook.runs import RunFolder

    predictions = predict_file(
        RunFolder.open(run, runs_dir),
        file,
        checkpoint=checkpoint,
        device=device,
        text_field=text_field,
        label_field=label_field,
        num_beams=num_beams,
    )
    if output is not None:
        predictions.must_not_be(output)
    if not quiet:
        for line in predictions.inputs.other_fields():
            echo(line, err=True)
    if output is None and as_json:
        answers = list(predictions)
        return print_json({"predictions": answers, **_totals(predictions)})
    shown = _counted(predictions, show=output is not None and not quiet and not as_json)
    written = _write(shown, output) if output is not None else _print(shown)
    if as_json:
        return print_json({"output": str(output), "predictions": written, **_totals(predictions)})
    if not quiet:
        _summarize(predictions, written, output)


def _totals(predictions: Any) -> dict[str, Any]:
    remark = predictions.remark()
    said = {"remark": remark} if remark else {}
    return {"skipped": predictions.num_skipped, "metrics": predictions.metrics(), **said}


def _write(answers: Iterable[dict[str, Any]], output: Path) -> int:
    from trainbook.errors import Interrupted
    from trainbook.runs.jsonl import dumps

    written, interrupted = 0, False
    with _whole_file(output) as write_line:
        try:
            for answer in answers:
                write_line(dumps(answer))
                written += 1
        except KeyboardInterrupt:  # what is done is worth keeping, and every line of it is whole
            interrupted = True
    if interrupted:
        raise Interrupted(f"interrupted: the first {written:,} predictions are in {output}")
    return written


@contextmanager
def _whole_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Lines go beside the file, which appears when all is well; otherwise it is as it was. A device or a pipe, such as
    /dev/null or /dev/stdout, is written to as it stands, and of a link it is the target that is written."""
    from trainbook.contained import create_anew
    from trainbook.errors import UserError
    from trainbook.runs.disk import naming_the_file

    if path.is_dir():
        raise UserError(f"--output: must be a file, but {path} is a folder.")
    with naming_the_file(path):
        target = Path(os.path.realpath(path))
        is_special = path.exists() and not path.is_file()
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        stream = open(path if is_special else create_anew(temporary), "w", encoding="utf-8")  # noqa: SIM115 - closed below

    def write_line(line: str) -> None:
        with naming_the_file(path):
            stream.write(line + "\n")

    try:
        yield write_line
        with naming_the_file(path):
            stream.close()
            if not is_special:
                os.replace(temporary, target)
    finally:
        with suppress(OSError):
            stream.close()
        if not is_special:
            temporary.unlink(missing_ok=True)


def _print(answers: Iterable[dict[str, Any]]) -> int:
    from trainbook.errors import Interrupted
    from trainbook.runs.jsonl import dumps

    written = 0
    try:
        for answer in answers:
            write(dumps(answer) + "\n")
            written += 1
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted after {written:,} predictions") from None
    return written


def _counted(answers: Iterable[dict[str, Any]], show: bool) -> Iterator[dict[str, Any]]:
    """On a terminal, a line that counts; elsewhere nothing."""
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from trainbook.terminal import new_console

    console = new_console(stderr=True)
    if not show or not console.is_terminal:
        yield from answers
        return
    columns = TextColumn("predicted {task.completed:,}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        for answer in answers:
            yield answer
            progress.advance(task)


def _summarize(predictions: Any, written: int, output: Path | None) -> None:
    """To the side, so that what is printed stays one JSON object a line."""
    metrics = predictions.metrics()
    if written == 0:
        echo("The file has no records: nothing was predicted.", err=True)
    if output is not None:
        echo(f"{written - predictions.num_skipped:,} predictions in {output}", err=True)
    if count := predictions.num_skipped:
        unusable = predictions.inputs.num_skipped
        reasons = [f"{unusable:,} unusable (the run has data.bad_lines=skip)"] if unusable else []
        reasons += [f"{count - unusable:,} without text"] if count > unusable else []
        echo(f"{count:,} {'record' if count == 1 else 'records'} skipped: {', '.join(reasons)}", err=True)
    for name, value in metrics.items():
        echo(f"{name.replace('_', ' '):<20} {value if isinstance(value, int) else format(value, '.4f')}", err=True)
    if remark := predictions.remark():
        echo(remark, err=True)
    if metrics and predictions.has_trained_on_it:
        echo("the run was trained on a part of this file: the scores on new data are those of its validation", err=True)
    if not metrics and predictions.note:
        echo(predictions.note, err=True)
