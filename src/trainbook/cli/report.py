"""trainbook report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainbook.cli.shared import AsJson, RunsDir, reports_errors
from trainbook.terminal import echo, folded

EXAMPLES = """[bold]Examples[/bold]

trainbook report runs/my-run

trainbook report tune-gpt-tiny --to pages/tuning --json
"""


@reports_errors
def report(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|STUDY",
            help="The folder or name of a run, or of a study: tune, ablate or transfer.",
            show_default=False,
        ),
    ],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write into this folder instead of the run's or study's.")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a page about a run or a study: report.html, which needs no other file, and report.md."""
    from trainbook.errors import UserError
    from trainbook.report.run_page import run_page
    from trainbook.report.study_page import find_study, study_page
    from trainbook.runs import RunFolder

    if len(what) > 1:
        raise UserError(
            "a report is about one run or study. To see runs side by side: trainbook compare " + " ".join(what)
        )
    study = find_study(what[0], runs_dir)
    folder = _run_at(what[0], runs_dir) if study is None else study
    page = run_page(RunFolder(folder)) if study is None else study_page(study)
    html, markdown = page.write(folder if to is None else to)
    for notice in page.notices:
        echo(f"notice: {notice}", err=True)
    if as_json:
        from trainbook.cli.shared import print_json

        told = {"name": page.name, "kind": page.what, "status": page.status, "headline": page.headline}
        return print_json({**told, "html": str(html), "markdown": str(markdown)})
    echo(folded(f"{page.name}: {page.headline}"))
    echo(f"\n  page       {html}\n  markdown   {markdown}")


def _run_at(what: str, runs_dir: Path) -> Path:
    """The folder of a run. If there is none: the nearest name of a run or a study."""
    from trainbook.errors import RunFolderError
    from trainbook.nearest import nearest_run
    from trainbook.report.study_page import find_study
    from trainbook.runs import RunFolder, list_runs

    wanted = Path(what) if len(Path(what).parts) > 1 else runs_dir / what
    try:
        return RunFolder.open(what, runs_dir).path
    except RunFolderError:
        if wanted.exists() or Path(what).exists():
            raise
    beside = wanted.parent.iterdir() if wanted.parent.is_dir() else ()
    names = [run.name for run in list_runs(wanted.parent)]
    names += [path.name for path in beside if find_study(path, runs_dir) is not None]
    near = nearest_run(wanted.name, names)
    hint = f" Did you mean {wanted.parent / near}?" if near else ""
    raise RunFolderError(f"there is no run or study {wanted}.{hint}")
