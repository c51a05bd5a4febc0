"""trainbook runs: list, filter, tag, archive and delete runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainbook.cli.options import Verb, Verbs
from trainbook.cli.shared import AsJson, RunsDir, reports_errors
from trainbook.terminal import echo, folded, write

if TYPE_CHECKING:
    from trainbook.runs import RunFolder
    from trainbook.runs.labels import Labels

EXAMPLES = """[bold]Examples[/bold]

trainbook runs

trainbook runs --filter "rate>1e-3 status:failed" --sort loss

trainbook runs list --help

trainbook runs tag first-try second-try baseline

trainbook runs delete first-try
"""
LIST_EXAMPLES = """[bold]Examples[/bold]

trainbook runs --filter "accuracy>0.9 -tag:baseline" --sort metric

trainbook runs runs/tune-gpt-tiny --filter "optimizer:adamw lr>=1e-3 lr<1e-2" --json

[bold]Filters[/bold]

A word is looked for in names and tags. A field is a knob by any of its names, a metric, or one of name, status, tag,
note, recipe, task, step, progress, parameters, seed, metric, loss, eval_loss, errors, warnings, guard, started and
updated. field:text asks whether a text holds another, or a run has a tag; =, !=, <, <=, > and >= compare. All terms
must hold. A hyphen before a term turns it around. Commas stand between values of which one is enough. Spaces may stand
around a sign. Double quotes keep words together.
"""
ACTIONS = ("tag", "untag", "note", "archive", "unarchive", "delete")


class ListByDefault(Verbs):
    """`trainbook runs DIR` and `trainbook runs --json` list runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    _tells_help = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._tells_help = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._tells_help = False

    def get_params(self, ctx: Any) -> list[Any]:
        """In the help with the options of the list, which is what `trainbook runs` does without a command."""
        own = super().get_params(ctx)
        listed = self.commands["list"].get_params(ctx) if self._tells_help else []
        known = {each.name for each in own}
        return [*(each for each in listed if each.param_type_name == "option" and each.name not in known), *own]


app = typer.Typer(
    cls=ListByDefault, no_args_is_help=False, rich_markup_mode="rich", help="List, tag, archive and delete runs."
)

Tag = Annotated[str, typer.Argument(metavar="TAG", help="A word or some words of your own.", show_default=False)]
Runs = Annotated[list[str], typer.Argument(metavar="RUN", help="Names or folders of runs.", show_default=False)]


@app.command("list", cls=Verb, epilog=LIST_EXAMPLES)
@reports_errors
def list_runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that holds the runs, or the folder of a study.")
    ] = Path("runs"),
    query: Annotated[
        str,
        typer.Option("--filter", metavar="QUERY", help="List the runs that match, as in 'rate>1e-3 status:failed'."),
    ] = "",
    sort: Annotated[
        str,
        typer.Option(
            "--sort", metavar="FIELD", help="Sort by a field; falling with a hyphen before it; metric: best first."
        ),
    ] = "-started",
    everything: Annotated[bool, typer.Option("--all", help="List archived runs too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs: status, steps, best evaluation, findings, tags. The default."""
    from trainbook.errors import UserError
    from trainbook.nearest import nearest
    from trainbook.report.runs_table import as_json as answer_of
    from trainbook.report.runs_table import list_rows, print_rows
    from trainbook.terminal import new_console

    if not folder.exists() and (near := nearest(str(folder), ACTIONS)):
        raise UserError(f"there is no folder {folder}. Did you mean trainbook runs {shlex.quote(str(near))}?")
    found = list_rows(folder, query, sort, with_archived=everything)
    for notice in found.notices:
        echo(f"notice: {notice}", err=True)
    if as_json:
        from trainbook.cli.shared import print_json

        return print_json(answer_of(found))
    if found.rows:
        print_rows(found, new_console())
    if found.why_none:
        echo(folded(f"hint: {found.why_none}"), err=True)
    for line in _below(found, folder):
        echo(folded(line))


def _below(found: Any, folder: Path) -> list[str]:
    lines = []
    if not found.rows:
        none = f"No run in {folder} matches the filter." if found.num_others else f"{folder} holds no runs."
        lines.append(none if not found.num_archived else f"All runs that match are archived ({found.num_archived}).")
    if found.num_archived:
        lines.append(f"{found.num_archived} archived: list {'it' if found.num_archived == 1 else 'them'} with --all.")
    if found.studies:
        names = ", ".join(path.name for path in found.studies[:5]) + (", …" if found.studies[5:] else "")
        lines.append(f"Studies: {names}. To list the runs of one: trainbook runs {shlex.quote(str(found.studies[0]))}")
    return lines


# Labels


@app.command("tag", cls=Verb)
@reports_errors
def tag(runs: Runs, tag: Tag, runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Add a tag to runs."""
    _change(runs, runs_dir, as_json, add=[tag])


@app.command("untag", cls=Verb)
@reports_errors
def untag(runs: Runs, tag: Tag, runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Remove a tag from runs."""
    _change(runs, runs_dir, as_json, remove=[tag])


@app.command("note", cls=Verb)
@reports_errors
def note(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The name or folder of a run.", show_default=False)],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note. An empty one removes it.", show_default=False)],
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a note about a run, in place of an earlier one."""
    _change([run], runs_dir, as_json, note=text)


@app.command("archive", cls=Verb)
@reports_errors
def archive(runs: Runs, runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Hide runs from the list. Nothing is deleted."""
    _change(runs, runs_dir, as_json, archived=True)


@app.command("unarchive", cls=Verb)
@reports_errors
def unarchive(runs: Runs, runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Show archived runs in the list again."""
    _change(runs, runs_dir, as_json, archived=False)


def _change(runs: list[str], runs_dir: Path, as_json: bool, **changes: Any) -> None:
    from trainbook.runs import RunFolder
    from trainbook.runs.labels import change_labels

    folders = [RunFolder.find(run, runs_dir) for run in dict.fromkeys(runs)]  # all of them, before one is changed
    changed = [(folder, change_labels(folder.path, **changes)) for folder in folders]
    if as_json:
        from trainbook.cli.shared import print_json

        return print_json({"runs": [_labels_as_json(folder, labels) for folder, labels in changed]})
    for folder, labels in changed:
        echo(folded(f"{folder.name}: {_told(labels)}"))


def _labels_as_json(folder: RunFolder, labels: Labels) -> dict[str, Any]:
    return {
        "name": folder.name,
        "path": str(folder.path),
        "tags": list(labels.tags),
        "note": labels.note,
        "archived": labels.archived,
    }


def _told(labels: Labels) -> str:
    tags = f"tags {', '.join(labels.tags)}" if labels.tags else "no tags"
    note = f"; note: {' '.join(labels.note.split())}" if labels.note else ""
    return f"{tags}{note}{'; archived' if labels.archived else ''}"


# Deleting


@app.command("delete", cls=Verb)
@reports_errors
def delete(
    runs: Runs,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Delete runs with all of their files, checkpoints included. Asks for the name of each."""
    from trainbook.errors import UserError
    from trainbook.runs.removal import delete_run, find_deletable

    if as_json and not yes:
        raise UserError("runs delete: --json needs --yes, because nobody can be asked.")
    folders = [find_deletable(run, runs_dir) for run in dict.fromkeys(runs)]
    deleted = []
    for folder in folders:
        if yes or _is_confirmed(folder):
            delete_run(folder)
            deleted.append(folder)
            if not as_json:
                echo(f"{folder.path} is deleted.")
        else:
            echo(f"{folder.path} is kept: that is not its name.")
    if as_json:
        from trainbook.cli.shared import print_json

        print_json({"deleted": [str(folder.path) for folder in deleted]})
    if len(deleted) < len(folders):
        raise typer.Exit(2)


def read_answer() -> str:
    return sys.stdin.readline()


def _is_confirmed(folder: RunFolder) -> bool:
    from trainbook.errors import UserError
    from trainbook.runs.removal import extent_of

    extent = extent_of(folder)
    size = f"{extent.bytes / 1e6:,.1f} MB" if extent.bytes >= 1e5 else f"{extent.bytes:,} bytes"
    echo(f"{folder.path}: {extent.files:,} files, {size}. A deleted run cannot be restored.")
    write(f"Type its name ({folder.name}) to delete it: ")
    sys.stdout.flush()
    given = read_answer()
    if not given:
        echo()
        raise UserError("nobody answers: to delete without being asked, add --yes.")
    return given.strip() == folder.name
