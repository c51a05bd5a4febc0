"""trainbook ablate"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainbook.cli.shared import (
    AsJson,
    Overrides,
    RunsDir,
    Storage,
    StudyName,
    Trust,
    Workers,
    reports_errors,
    worker_count,
)
from trainbook.terminal import echo, folded, this_command

if TYPE_CHECKING:
    from trainbook.study.ablate.study_file import AblateQuestion
    from trainbook.study.tune.trial import Trial

EXAMPLES = """[bold]Examples[/bold]

trainbook ablate study.yaml --workers auto

trainbook ablate study.yaml training.max_steps=100 --seeds 10 --name norms
"""

Study = Annotated[
    str,
    typer.Argument(metavar="STUDY.yaml", help="A study file: a base, arms, data sets, seeds.", show_default=False),
]
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", min=2, help="Pairs of runs for each arm and data set; more extend a study. Default: 5."),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        "--epsilon", help="A smaller effect does not matter: a share of the loss, or points of a score. Default: 0.01."
    ),
]


@reports_errors
def ablate(
    study: Study,
    overrides: Overrides = None,
    seeds: Seeds = None,
    epsilon: Epsilon = None,
    workers: Workers = None,
    storage: Storage = None,
    name: StudyName = None,
    runs_dir: RunsDir = Path("runs"),
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Compare changes with a base, each at its best learning rate, over seeds and data sets: which of them help?"""
    from trainbook.knobs import overrides_from_arguments
    from trainbook.runs import check_name, name_of
    from trainbook.runs.trust import require_trust_of_file
    from trainbook.study.ablate.study_file import read_ablation

    changes = overrides_from_arguments(overrides or [])
    question = read_ablation(study, changes, seeds=seeds, epsilon=epsilon, workers=worker_count(workers))
    require_trust_of_file(study, question.loaded)
    name = f"ablate-{name_of(study)}" if name is None else name
    name = check_name(name, "study")
    answer = _compare(question, Path(runs_dir) / name, storage, quiet=as_json)
    if as_json:
        from trainbook.cli.shared import print_json

        return print_json(answer)
    _tell(answer)


def _compare(question: AblateQuestion, folder: Path, storage: str | None, quiet: bool) -> dict[str, Any]:
    from trainbook.errors import Interrupted
    from trainbook.study.ablate.run import Ablation

    with _Progress(question, quiet) as progress:
        job = Ablation(question, folder, storage, say=progress.say, watch=progress.show, quiet=quiet)
        goes_on = job.prepare()
        _announce(question, folder, goes_on, progress)
        try:
            trials = job.run()
        except Interrupted as stop:
            again = this_command()
            again += "" if "--name" in again else f" --name {shlex.quote(folder.name)}"
            raise Interrupted(f"{stop}. To resume: {again}") from None
    return job.answer(trials)


def _announce(question: AblateQuestion, folder: Path, goes_on: bool, progress: _Progress) -> None:
    say = progress.say
    say(f"{folder}{' (resumed)' if goes_on else ''}")
    say(f"  {'base':<10} {question.base}, evaluated by {question.metric}")
    say(folded(f"  {'arms':<10} {', '.join(question.arms)}; the control is the unchanged base", 13))
    if len(question.data) > 1:
        say(folded(f"  {'data':<10} {', '.join(question.data)}", 13))
    searched = ", ".join(f"{each:g}" for each in question.rates) or "as they are"
    say(folded(f"  {'rates':<10} {searched}; each arm is compared at its best one on each data set", 13))
    workers = f"{question.workers} worker{'s' if question.workers > 1 else ''}"
    say(f"  {'runs':<10} {question.num_runs:,} in all, {question.seeds} seeds for each comparison; {workers}")


def _tell(answer: Mapping[str, Any]) -> None:
    echo("")
    for line in _table(answer):
        echo(line)
    echo("")
    for line in answer["conclusion"]:
        echo(folded(f"  {line}", 4))
    kept = "  (the base's own values: no arm is better)" if answer.get("recipe_is_base") else ""
    echo(f"\n  recipe     {answer['recipe']}{kept}")
    for remark in answer["remarks"]:
        echo(folded(f"  remark     {remark}", 13))
    for path in answer["pictures"]:
        echo(f"  picture    {path}")
    echo(f"  next       trainbook train {shlex.quote(answer['recipe'])}")


def _table(answer: Mapping[str, Any]) -> list[str]:
    from trainbook.report.study_page import effect_rows

    rows = effect_rows(dict(answer))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(each.ljust(width) for each, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


class _Progress:
    """How far the study is: a bar on a terminal, a line for each run that ends elsewhere."""

    def __init__(self, question: AblateQuestion, quiet: bool) -> None:
        self.question, self.quiet = question, quiet
        self.told: set[int] = set()
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> _Progress:
        if not self.quiet and sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            from trainbook.terminal import new_console

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=new_console(), transient=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def say(self, line: str) -> None:
        if self.quiet:
            return
        if self.bar is not None and self.task is not None:
            self.bar.console.print(line, highlight=False)
        else:
            echo(line)

    def show(self, trials: Sequence[Trial], plan: dict[str, Any] | None) -> None:
        if self.quiet or plan is None:
            return
        for each in trials:
            if each.is_over and each.number not in self.told:
                self.told.add(each.number)
                self.say(_line(each, plan["cells"][each.arm]))
        if self.bar is not None:
            if self.task is None:
                self.bar.start()
                self.task = self.bar.add_task("runs", total=self.question.num_runs)
            self.bar.update(self.task, completed=len(self.told))


def _line(trial: Trial, cell: Sequence[str]) -> str:
    ended = f"{trial.loss:.4f}" if trial.state == "done" and trial.loss is not None else trial.state
    stage = f"learning rate {trial.units[0]:g}" if trial.units else ""
    seed = "" if trial.kind == "search" else f"  seed {trial.seed}"
    reason = f"  {trial.reason.splitlines()[0][:90]}" if trial.reason else ""
    return f"  {trial.number:>4}  {cell[0]:<14} {cell[1]:<12} {ended:<10} {stage}{seed}{reason}".rstrip()
