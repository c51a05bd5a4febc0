"""The command line: a verb, then a recipe or a file, then key=value overrides."""

from __future__ import annotations

import logging
import os
import signal
import sys

import typer

from trainbook.cli import (
    ablate,
    board,
    check,
    compare,
    convert,
    data,
    doctor,
    explain,
    export,
    export_metrics,
    generate,
    plan,
    predict,
    report,
    resume,
    runs,
    train,
    transfer,
    tune,
)
from trainbook.cli.options import KnobsAllowed, Verb, Verbs
from trainbook.terminal import echo, guarded_streams

app = typer.Typer(
    name="trainbook",
    cls=Verbs,
    help="The training playbook you can run. Start with: trainbook train gpt-tiny",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("train", cls=KnobsAllowed, epilog=train.EXAMPLES)(train.train)
app.command("resume", cls=KnobsAllowed, epilog=resume.EXAMPLES)(resume.resume)
app.command("generate", cls=Verb, epilog=generate.EXAMPLES)(generate.generate)
app.command("predict", cls=Verb, epilog=predict.EXAMPLES)(predict.predict)
app.command("export", cls=Verb, epilog=export.EXAMPLES)(export.export)
app.command("convert", cls=Verb, epilog=convert.EXAMPLES)(convert.convert)
app.command("explain", cls=KnobsAllowed, epilog=explain.EXAMPLES)(explain.explain)
app.command("check", cls=KnobsAllowed, epilog=check.EXAMPLES)(check.check)
app.command("doctor", cls=KnobsAllowed, epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("plan", cls=KnobsAllowed, epilog=plan.EXAMPLES)(plan.plan)
app.command("data", cls=KnobsAllowed, epilog=data.EXAMPLES)(data.data)
app.command("tune", cls=KnobsAllowed, epilog=tune.EXAMPLES)(tune.tune)
app.command("ablate", cls=KnobsAllowed, epilog=ablate.EXAMPLES)(ablate.ablate)
app.command("transfer", cls=KnobsAllowed, epilog=transfer.EXAMPLES)(transfer.transfer)
app.command("compare", cls=compare.WithPage, epilog=compare.EXAMPLES)(compare.compare)
app.command("export-metrics", cls=Verb, epilog=export_metrics.EXAMPLES)(export_metrics.export_metrics)
app.add_typer(runs.app, name="runs", epilog=runs.EXAMPLES)
app.command("report", cls=Verb, epilog=report.EXAMPLES)(report.report)
app.command("board", cls=Verb, epilog=board.EXAMPLES)(board.board)


def _version(value: bool) -> None:
    if value:
        from trainbook import __version__

        echo(f"trainbook {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    # Where DeepSpeed is installed, other packages import it, and it warns on stdout, which is for the answer.
    logging.getLogger("DeepSpeed").addFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


NOBODY_READS = 128 + signal.SIGPIPE  # as a shell says of a program that a closed pipe has ended


def run() -> None:
    try:
        with guarded_streams():
            app(prog_name="trainbook")  # also as python -m trainbook
    except SystemExit as end:  # click and rich exit with 1, which would say that the command failed
        if isinstance(end.__context__, BrokenPipeError):
            sys.exit(NOBODY_READS)
        raise
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # as with `| head`: what is left to say goes nowhere, quietly
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
