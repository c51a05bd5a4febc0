"""trainbook train"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trainbook.cli import processes
from trainbook.cli.errors import reports_errors
from trainbook.cli.processes import MaxRestarts, Nproc
from trainbook.cli.shared import AcceptChanges, AsJson, Overrides, Quiet, Recipe, RunsDir
from trainbook.cli.trust import Trust
from trainbook.loop.faults.kinds import KINDS, must_suit_world, parse

EXAMPLES = """[bold]Examples[/bold]

trainbook train gpt-tiny

trainbook train my.yaml optimizer.learning_rate=3e-4 --name first-try

trainbook train my.yaml --nproc 8 --max-restarts 3

trainbook train gpt-tiny --inject nan-gradient@50 --inject kill@120 --name survivor
"""

Inject = Annotated[
    list[str] | None,
    typer.Option(
        "--inject",
        metavar="KIND@STEP[:rank=R]",
        help="Inject a fault on purpose, to see how the run copes, on every process or on the one with rank R; "
        f"repeatable: {', '.join(KINDS)}.",
        show_default=False,
    ),
]


@reports_errors
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The name of the run. An existing run of that name is resumed.")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    resume: Annotated[
        Literal["auto", "never"],
        typer.Option(
            "--resume", help="What to do with an existing run of that name. auto: resume it; never: stop with an error."
        ),
    ] = "auto",
    accept_changes: AcceptChanges = False,
    inject: Inject = None,
    nproc: Nproc = 1,
    max_restarts: MaxRestarts = 0,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check the configuration, the head of the data and the run folder. Train nothing."
        ),
    ] = False,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a model, or resume the run of the same name."""
    from trainbook.knobs import load, overrides_from_arguments, require_length
    from trainbook.runs import check_name, default_name

    faults = parse(inject or [])
    starts_others = processes.are_to_be_started(nproc, max_restarts)
    if starts_others:
        must_suit_world(faults, nproc)
    loaded = load(recipe, overrides_from_arguments(overrides or []))
    require_length(loaded)
    if name == "":
        check_name(name, "run")
    if dry_run:
        from trainbook.cli.dry_run import try_out
        from trainbook.runs.trust import require_trust_of_file

        require_trust_of_file(recipe, loaded)
        checked = try_out(loaded, recipe, name, runs_dir, resume, accept_changes)
        return _show(loaded, as_json, nproc, checked)
    if starts_others:
        # Fixed before they start: all ranks, and those that are started again, must mean the same run.
        name = name or default_name(recipe, runs_dir)
        arguments = ["train", recipe, *(overrides or []), "--name", name, "--resume", resume]
        processes.start([*arguments, *passed_on(runs_dir, accept_changes, inject, as_json, quiet)], nproc, max_restarts)
    if processes.is_restarted():  # the run is there because of the start before, which has met the faults
        resume, inject = "auto", None

    from trainbook import api

    result = api.train(
        loaded,
        recipe=recipe,
        name=name,
        runs_dir=runs_dir,
        resume=resume,
        accept_changes=accept_changes,
        quiet=quiet or as_json,
        inject=inject or [],
        trust=trust,
    )
    if as_json:
        print_result(result)


def passed_on(runs_dir: Path, accept_changes: bool, inject: list[str] | None, as_json: bool, quiet: bool) -> list[str]:
    """The options of train and resume as arguments, for the processes that are started."""
    flags = {"--accept-changes": accept_changes, "--json": as_json, "--quiet": quiet}
    faults = [argument for fault in inject or [] for argument in ("--inject", fault)]
    return ["--runs-dir", str(runs_dir), *(flag for flag, is_set in flags.items() if is_set), *faults]


def _show(loaded: Any, as_json: bool, world: int, checked: list[str]) -> None:
    from trainbook.cli.dry_run import NOT_CHECKED
    from trainbook.cli.output import print_json
    from trainbook.cli.plan import plan_or_reason
    from trainbook.knobs import explain_config
    from trainbook.knobs.render import render_config
    from trainbook.plan.render import render_plan
    from trainbook.terminal import new_console

    facts = explain_config(loaded)
    planned, reason = plan_or_reason(loaded, world)
    if as_json:
        return print_json({**facts, "plan": planned, "checked": checked, "not_checked": NOT_CHECKED})
    console = new_console()
    render_config(facts, console, everything=True)
    console.print()
    if planned is not None:
        render_plan(planned, console)
    else:
        console.print(f"No plan: {reason}")
    for title, lines in (("Checked", checked), ("Not checked", NOT_CHECKED)):
        console.print(f"\n{title}", style="bold")
        for line in lines:
            console.print(f"  {line}", highlight=False)


def print_result(result: Any) -> None:
    """The facts of the card as JSON; of several processes, the first one's."""
    from trainbook.cli.output import print_json
    from trainbook.parallel import find_rank_env

    if find_rank_env().rank > 0:
        return
    faults = result.run.read_manifest().injected_faults
    facts = {"run": str(result.run.path), "ended": result.ended, "best": result.best, "last": result.last}
    print_json({**facts, "injected_faults": faults})
