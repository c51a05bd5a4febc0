"""trainbook board"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainbook.cli.shared import reports_errors
from trainbook.terminal import echo

USUAL = Path("runs")

EXAMPLES = """[bold]Examples[/bold]

trainbook board

trainbook board runs tune-gpt-tiny ~/output/checkpoint-500/trainer_state.json --port 9000

trainbook board --demo
"""


@reports_errors
def board(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR",
            help="Folders that hold runs or studies, at any depth; also a run, a study or a log of another tool. "
            "By default runs.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="The port, or the next free one. 0: any.")
    ] = 8700,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on. Other machines need the token that is printed.")
    ] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    allow_actions: Annotated[
        bool,
        typer.Option(
            "--allow-actions",
            help="Let the page stop, tag, archive and delete runs, and try remedies, with the token that is printed.",
        ),
    ] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Show recorded runs that come with Trainbook.")] = False,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TOKEN", help="Ask everybody for this token.", show_default=False),
    ] = None,
) -> None:
    """Look at runs and studies in a browser: live curves, what the guard did, what the doctor thinks."""
    from trainbook.errors import MissingExtra, UserError

    try:
        from trainbook.board.serving import Serving, serve
    except ImportError as error:
        raise MissingExtra("trainbook board", str(error.name).partition(".")[0], "board") from None
    from trainbook.board.sources import demo_runs, must_exist

    if token is not None and len(token) < 8:
        raise UserError("--token: must have at least 8 characters.")
    if demo and folders:
        raise UserError("--demo shows its own runs: leave the folders out.")
    if demo:
        with demo_runs() as folder:
            return serve(Serving([folder], host, port, token, allow_actions, True, not no_browser), echo)
    if not folders and not USUAL.exists():
        echo(
            f"There is no folder {USUAL} here yet: the board waits for it. To see recorded runs: trainbook board --demo"
        )
    sources = must_exist(folders) if folders else [USUAL]
    serve(Serving(sources, host, port, token, allow_actions, False, not no_browser), echo)
