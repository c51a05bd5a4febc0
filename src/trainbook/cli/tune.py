"""trainbook tune"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    from trainbook.study.tune.study_file import StudyQuestion
    from trainbook.study.tune.trial import Trial

EXAMPLES = """[bold]Examples[/bold]

trainbook tune gpt-tiny --budget 12

trainbook tune study.yaml --workers 4 --name first-study

trainbook tune my.yaml training.max_steps=500 --budget "2 GPU-hours" --method zoom

trainbook tune my.yaml --rate-range --picture rates.png
"""


StudyOrRecipe = Annotated[
    str,
    typer.Argument(metavar="STUDY.yaml|RECIPE", help="A study file, or a recipe to search around.", show_default=False),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help='32 (trials of the search; --seeds adds repetitions), "2.5 GPU-hours" or "4B tokens"; a larger one '
        "extends a study. Default: 32.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option("--method", help="The search method: sobol (the default), random, zoom, one-at-a-time, tpe or gp."),
]
Pruning = Annotated[
    str | None, typer.Option("--pruning", help="Stop bad trials early: asha or hyperband. Default: none.")
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        help="How often the base and the best trials that are better than it, up to three, are repeated at the "
        "end, each time with a new seed; 0: never. Default: 3.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run trials as tasks of this Ray cluster, each with a GPU if there are any. local: start one here.",
    ),
]
RateRange = Annotated[
    bool,
    typer.Option(
        "--rate-range", help="No study: one short run with a growing learning rate, to find the range to search."
    ),
]
ForBatch = Annotated[
    int | None,
    typer.Option("--for-batch", metavar="N", help="No study: report what else to change for a batch of N sequences."),
]
Measured = Annotated[
    Path | None,
    typer.Option(
        "--measured", metavar="FILE", help="With --for-batch: the file that `plan --measure --noise-after` wrote."
    ),
]
Picture = Annotated[Path | None, typer.Option("--picture", help="With --rate-range: save the curve to this file.")]


@reports_errors
def tune(
    study: StudyOrRecipe,
    overrides: Overrides = None,
    budget: Budget = None,
    method: Method = None,
    pruning: Pruning = None,
    seeds: Seeds = None,
    workers: Workers = None,
    storage: Storage = None,
    ray: Ray = None,
    rate_range: RateRange = False,
    for_batch: ForBatch = None,
    measured: Measured = None,
    picture: Picture = None,
    name: StudyName = None,
    runs_dir: RunsDir = Path("runs"),
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Search for good values of the hyperparameters that matter most, and report how reliable the result is."""
    from trainbook.errors import UserError
    from trainbook.knobs import overrides_from_arguments
    from trainbook.runs import check_name, name_of
    from trainbook.runs.kinds import must_describe_a_run
    from trainbook.runs.trust import require_trust_of_file
    from trainbook.study.tune.study_file import read_question

    must_describe_a_run(study)
    changes = overrides_from_arguments(overrides or [])
    options = {"budget": budget, "method": method, "pruning": pruning, "seeds": seeds, "workers": worker_count(workers)}
    no_study = _NoStudy(rate_range, for_batch, measured, picture)
    if no_study.is_asked_for(study, {**options, "name": name, "storage": storage, "ray": ray}):
        return no_study.tell(study, changes, as_json)
    if ray is not None and ray != "local" and storage is None:
        raise UserError(
            "--ray: tasks on other machines cannot reach a file on this one. Pass a database with --storage URL."
        )
    question = read_question(study, changes, **options)
    require_trust_of_file(study, question.loaded)
    name = f"tune-{name_of(study)}" if name is None else name
    name = check_name(name, "study")
    answer = _search(question, Path(runs_dir) / name, storage, ray, quiet=as_json)
    if as_json:
        from trainbook.cli.shared import print_json

        return print_json(answer)
    _tell(answer)


@dataclass(frozen=True)
class _NoStudy:
    """What needs no study."""

    rate_range: bool
    for_batch: int | None
    measured: Path | None
    picture: Path | None

    def is_asked_for(self, recipe: str, options: Mapping[str, Any]) -> bool:
        """Flags that would then do nothing are refused."""
        from trainbook.errors import UserError
        from trainbook.study.tune.study_file import is_study

        if self.rate_range and self.for_batch is not None:
            raise UserError("--rate-range and --for-batch cannot be combined: pass one of them.")
        if self.measured is not None and self.for_batch is None:
            raise UserError("--measured: has no effect without --for-batch.")
        if self.picture is not None and not self.rate_range:
            raise UserError(
                "--picture: has no effect without --rate-range: a study draws its pictures into its folder."
            )
        if not self.rate_range and self.for_batch is None:
            return False
        given = [f"--{name}" for name, value in options.items() if value is not None]
        alone = "--rate-range" if self.rate_range else "--for-batch"
        if is_study(recipe):
            raise UserError(
                f"{recipe}: is a study, but {alone} needs a recipe or a configuration. Pass the study's base."
            )
        if given:
            raise UserError(f"{given[0]}: has no effect with {alone}, which runs no study.")
        return True

    def tell(self, recipe: str, changes: list[str], as_json: bool) -> None:
        from trainbook.cli.rates import tell_for_batch, tell_rate_range

        if self.for_batch is None:
            tell_rate_range(recipe, changes, self.picture, as_json)
        else:
            tell_for_batch(recipe, changes, self.for_batch, self.measured, as_json)


def _search(question: StudyQuestion, folder: Path, storage: str | None, ray: str | None, quiet: bool) -> dict[str, Any]:
    from trainbook.errors import Interrupted
    from trainbook.study.tune.run import Study, words_before

    with _Table(question, quiet) as table:
        job = Study(question, folder, storage, say=table.say, watch=table.show, ray=ray, quiet=quiet)
        goes_on = job.prepare()
        _announce(question, folder, goes_on, table.say, words_before(question))
        try:
            trials = job.run()
        except Interrupted as stop:
            again = this_command()
            again += "" if "--name" in again else f" --name {shlex.quote(folder.name)}"
            raise Interrupted(f"{stop}. To resume: {again}") from None
    return job.answer(trials)


def _tell(answer: Mapping[str, Any]) -> None:
    echo("")
    for line in answer["conclusion"]:
        echo(folded(f"  {line}", 4))
    kept = "  (the base's own values: nothing beat the base)" if answer.get("recipe_is_base") else ""
    echo(f"\n  recipe     {answer['recipe']}{kept}")
    for remark in answer["remarks"]:
        echo(folded(f"  remark     {remark}", 13))
    for path in answer["pictures"]:
        echo(f"  picture    {path}")
    echo(f"  next       trainbook train {shlex.quote(answer['recipe'])}")


def _announce(
    question: StudyQuestion, folder: Path, goes_on: bool, say: Callable[[str], None], words: list[str]
) -> None:
    from trainbook.study.tune.planning import num_repetitions

    say(f"{folder}{' (resumed)' if goes_on else ''}")
    say(f"  {'base':<10} {question.base}, evaluated by {question.metric}")
    again = (
        ", then the base and the best trials that are better than it, up to three, repeated with "
        f"{question.seeds} new seed{'s' if question.seeds > 1 else ''}"
        if question.seeds
        else ""
    )
    if question.seeds and question.budget.unit == "trials":
        most = round(question.budget.amount) + num_repetitions(question)
        again += f" (at most {most:,} runs in all; --seeds 0 runs the search alone)"
    pruned = f", pruned by {question.pruning}" if question.pruning != "none" else ""
    workers = f"{question.workers} worker{'s' if question.workers > 1 else ''}"
    say(folded(f"  {'search':<10} {question.budget} with {question.method}{pruned}{again}; {workers}", 13))
    if question.budget.meaning is not None:
        say(folded(f"  {'':<10} {question.budget.meaning}", 13))
    for each in question.roles.scientific:
        say(f"  {'compared':<10} {each.path}: {each.text}")
    for line in words:
        say(folded(f"  {'':<10} {line}", 13))


class _Table:
    """The trials as they come: a table that lives on a terminal, a line for each that ends elsewhere."""

    SHOWN = 12  # of the newest trials

    def __init__(self, question: StudyQuestion, quiet: bool) -> None:
        self.question, self.quiet = question, quiet
        self.told: set[int] = set()
        self.live: Any = None
        self.plan_is_told = question.budget.unit == "trials"  # before the first trial
        self.repeated: list[str] = []  # what was said of it

    def __enter__(self) -> _Table:
        if not self.quiet and sys.stdout.isatty():
            from rich.live import Live

            from trainbook.terminal import new_console

            self.live = Live(console=new_console(), refresh_per_second=4, transient=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, line: str) -> None:
        if self.quiet:
            return
        if self.live is not None and self.live.is_started:
            self.live.console.print(line, highlight=False)
        else:
            echo(line)

    def _tell_ended(self, trials: Iterable[Trial]) -> None:
        for each in trials:
            if each.is_over and each.state != "dropped" and each.number not in self.told:
                self.told.add(each.number)
                self.say(_line(each))

    def show(self, trials: Sequence[Trial], plan: dict[str, Any] | None) -> None:
        if self.quiet:
            return
        from trainbook.study.tune.planning import words_on_repeated
        from trainbook.study.tune.run import words_of

        if plan is not None and "trials" in plan and not self.plan_is_told:
            self.plan_is_told = True
            for line in words_of(plan):
                self.say(f"  {'search':<10} {line}")
        self._tell_ended(each for each in trials if each.kind != "repeat")  # what is repeated was chosen among them
        if (lines := words_on_repeated(self.question, trials)) != self.repeated:
            self.repeated = lines
            for line in lines:
                self.say(folded(f"  {'then':<10} {line}", 13))
        self._tell_ended(trials)
        if self.live is not None and trials:
            self.live.start() if not self.live.is_started else None
            self.live.update(self._table(trials, plan))

    def _table(self, trials: Sequence[Trial], plan: dict[str, Any] | None) -> Any:
        from rich.table import Table

        from trainbook.study.tune.planning import best_of

        repeats = [each for each in trials if each.kind == "repeat"]
        ended, again = (sum(each.is_over for each in some) for some in (trials, repeats))
        title = f"{ended - again} of {(plan or {}).get('trials', '?')} trials"
        title += f", {again} of {len(repeats)} repetitions" if repeats else ", then the repetitions"
        table = Table(title=title, title_justify="left", min_width=len(title))
        best = best_of(self.question, trials)
        for column in ("trial", "values", "state", "worker", self.question.metric):
            table.add_column(column)
        running = [each for each in trials if each.state == "running"]
        for each in [*([best] if best else []), *running][: self.SHOWN]:
            state = "best so far" if each is best else each.state
            loss = "" if each.loss is None else f"{each.loss:.4g}"
            table.add_row(str(each.number), _values(each), state, (each.worker or "").rsplit("-", 1)[-1], loss)
        return table


def _line(trial: Trial) -> str:
    what = {"base": "base", "repeat": f"repeat {trial.of}"}.get(trial.kind, "")
    ended = f"{trial.loss:.4f}" if trial.state == "done" and trial.loss is not None else trial.state
    reason = f"  {trial.reason.splitlines()[0][:90]}" if trial.reason else ""
    seed = f"  seed {trial.seed}" if trial.seed is not None else ""
    return f"  {trial.number:>4}  {what:<9} {ended:<10}  {_values(trial)}{seed}{reason}".rstrip()


def _values(trial: Trial) -> str:
    names = [path.split(".")[1] for path in trial.values]
    return "  ".join(
        f"{path if names.count(name) > 1 else name}={_value(value)}"  # optimizer.type and schedule.type are two
        for name, (path, value) in zip(names, trial.values.items(), strict=True)
    )


def _value(value: Any) -> str:
    from trainbook.knobs.values import show

    return f"{value:.4g}" if isinstance(value, float) else show(value).strip("'")
