"""trainbook transfer"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainbook.cli.shared import AsJson, Overrides, Recipe, RunsDir, Trust, Workers, reports_errors, worker_count
from trainbook.errors import UserError
from trainbook.terminal import echo

if TYPE_CHECKING:
    from trainbook.study.transfer.family import Family
    from trainbook.study.transfer.rates import RateStudy
    from trainbook.study.tune.trial import Trial


EXAMPLES = """[bold]Examples[/bold]

trainbook transfer gpt-tiny --coordinate-check --sizes 64,128,256,512 --picture check.png

trainbook transfer gpt-tiny training.max_steps=200 --rates --sizes 64,128,256 --name gpt-rates

trainbook transfer gpt-tiny --rates --by depth --sizes 2,4,8 --seeds 3 --json

trainbook transfer large.yaml --proxy 128 --budget 24 --workers 4
"""
WIDTHS = "64,128,256,512"
CHECK, RATES, PROXY = "--coordinate-check", "--rates", "--proxy"
# Which of the three questions each flag belongs to.
BELONGS = {
    "--by": (RATES,),
    "--sizes": (CHECK, RATES),
    "--learning-rates": (RATES,),
    "--rate": (CHECK,),
    "--steps": (CHECK,),
    "--workers": (RATES, PROXY),
    "--name": (RATES, PROXY),
    "--budget": (PROXY,),
    "--method": (PROXY,),
    "--picture": (CHECK, RATES),
}


CoordinateCheck = Annotated[
    bool, typer.Option(CHECK, help="Coordinate check: how activations grow with the width over the first steps.")
]
Rates = Annotated[
    bool, typer.Option(RATES, help="Train each size at several learning rates: does the best one stay the same?")
]
Proxy = Annotated[
    int | None,
    typer.Option(
        PROXY, metavar="WIDTH", help="Search on a model of this width, and write the recipe of the large model."
    ),
]
Axis = Literal["width", "depth", "length", "batch"]
By = Annotated[Axis | None, typer.Option("--by", help="With --rates: what grows. Default: width.", show_default=False)]
Sizes = Annotated[
    str | None,
    typer.Option("--sizes", metavar="N,N,…", help=f"The sizes, in rising order. Default for widths: {WIDTHS}."),
]
LearningRates = Annotated[
    str | None,
    typer.Option(
        "--learning-rates",
        metavar="RATE,…",
        help="The learning rates. By default the recipe's, halved and doubled three times.",
    ),
]
Rate = Annotated[
    float | None, typer.Option("--rate", help="With --coordinate-check: the learning rate. Default: 0.01.")
]
Steps = Annotated[
    int | None, typer.Option("--steps", min=1, help="With --coordinate-check: the number of updates. Default: 5.")
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        min=1,
        help="Runs of each setting. Default: 3 in a check, 1 per learning rate, 3 for each of a proxy's best.",
    ),
]
Budget = Annotated[
    str | None, typer.Option("--budget", help="With --proxy: the budget, as in trainbook tune. Default: 32 trials.")
]
Method = Annotated[
    str | None, typer.Option("--method", help="With --proxy: the search method, as in trainbook tune. Default: sobol.")
]
Name = Annotated[
    str | None,
    typer.Option("--name", help="With --rates and --proxy: the name of the study. An existing one is resumed."),
]
Picture = Annotated[Path | None, typer.Option("--picture", help="Save the figure to this file (.png).")]


@reports_errors
def transfer(
    recipe: Recipe,
    overrides: Overrides = None,
    coordinate_check: CoordinateCheck = False,
    rates: Rates = False,
    proxy: Proxy = None,
    by: By = None,
    sizes: Sizes = None,
    learning_rates: LearningRates = None,
    rate: Rate = None,
    steps: Steps = None,
    seeds: Seeds = None,
    workers: Workers = None,
    budget: Budget = None,
    method: Method = None,
    name: Name = None,
    runs_dir: RunsDir = Path("runs"),
    picture: Picture = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Check whether settings tuned on a small model carry over to a large one, under standard rules or muP."""
    from trainbook.knobs import overrides_from_arguments

    asked = {CHECK: coordinate_check, RATES: rates, PROXY: proxy is not None}
    given = {"--by": by, "--sizes": sizes, "--learning-rates": learning_rates, "--rate": rate, "--steps": steps}
    name = None if name is None else unicodedata.normalize("NFC", name)
    given |= {"--workers": workers, "--name": name, "--budget": budget, "--method": method, "--picture": picture}
    question = _question(asked, given)
    changes = overrides_from_arguments(overrides or [])
    _require_trust(recipe, changes)
    say = (lambda line: None) if as_json else (lambda line: echo(line, err=True))
    if proxy is not None:
        options = {"budget": budget, "method": method, "seeds": seeds, "workers": worker_count(workers)}
        answer = find_with_proxy(recipe, changes, proxy, name, runs_dir, as_json, **options)
    elif coordinate_check:
        answer = _check(_family(recipe, changes, "width", sizes), steps or 5, seeds or 3, rate, say)
    else:
        family = _family(recipe, changes, by or "width", sizes)
        study = _rate_study(family, learning_rates, runs_dir / (name or _default_name(recipe, runs_dir)))
        answer = _run(replace(study, seeds=seeds or 1, workers=worker_count(workers) or 1, say=say))
    _tell(answer, question, as_json)  # first: a picture that cannot be written takes no answer with it
    if picture is not None:
        from trainbook.charts import study as charts

        (charts.draw_coordinate_check if coordinate_check else charts.draw_rates)(answer, picture)
        say(f"picture: {picture}")


def _question(asked: Mapping[str, bool], given: Mapping[str, Any]) -> str:
    """The one that is asked, if the flags belong to it."""
    questions = [flag for flag, is_asked in asked.items() if is_asked]
    if len(questions) != 1:
        raise UserError(f"pass one of {CHECK}, {RATES} and {PROXY} WIDTH.")
    for flag, value in given.items():
        if value is not None and questions[0] not in BELONGS[flag]:
            raise UserError(f"{flag}: has no effect with {questions[0]}; it is for {' and '.join(BELONGS[flag])}.")
    if given["--name"] is not None:
        from trainbook.runs import check_name

        check_name(given["--name"], "study")
    if given["--picture"] is not None:
        from trainbook.charts.figure import check_path

        check_path(given["--picture"])
    return questions[0]


def _require_trust(recipe: str, changes: list[str]) -> None:
    from trainbook.knobs import load
    from trainbook.runs.kinds import must_describe_a_run
    from trainbook.runs.trust import is_in_run_folder, require_trust_of_file

    must_describe_a_run(recipe)
    if is_in_run_folder(recipe):
        require_trust_of_file(recipe, load(recipe, changes))


def _family(recipe: str, changes: list[str], by: Axis, sizes: str | None) -> Family:
    from trainbook.knobs import load, require_length
    from trainbook.study.transfer import AXES, Family

    loaded = load(recipe, changes)
    require_length(loaded)
    if loaded.config.model.pretrained is not None:
        raise UserError("model.pretrained: the size of a pretrained model is fixed, so it must be null here.")
    if sizes is None and by != "width":
        now = loaded.get(AXES[by])
        raise UserError(f"--sizes: must be given with --by {by}; the recipe has {now}.")
    text = WIDTHS if sizes is None else sizes
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UserError(f"--sizes: must be comma-separated whole numbers, but got {text!r}.")
    return Family(loaded, by, tuple(int(size) for size in text.split(",")))


def _check(family: Family, steps: int, seeds: int, rate: float | None, say: Callable[[str], None]) -> dict[str, Any]:
    from trainbook.study.transfer import coordinate_check

    if rate is not None and not 0 < rate < math.inf:
        raise UserError(f"--rate: must be a number above 0, but got {rate:g}.")
    return coordinate_check(family, steps=steps, seeds=seeds, rate=rate or 0.01, say=say)


def _default_name(recipe: str, runs_dir: Path) -> str:
    from trainbook.runs import default_name, name_of

    return default_name(f"{name_of(recipe)}-rates", runs_dir)


def _rate_study(family: Family, rates: str | None, folder: Path) -> RateStudy:
    from trainbook.report import write_report
    from trainbook.study.transfer.rates import RateStudy, checked_rates, grid, train_cell

    chosen = checked_rates(rates) if rates is not None else grid(family.base.config.optimizer.learning_rate)
    return RateStudy(family, chosen, 1, folder, train_cell, write_report=write_report)


def _run(study: RateStudy) -> dict[str, Any]:
    from trainbook.errors import Interrupted

    try:
        return study.run()
    except (Interrupted, KeyboardInterrupt) as stop:
        told = str(stop).partition(".")[0] or "interrupted"
        raise Interrupted(
            f"{told}. To resume, run the same command with --name {shlex.quote(study.folder.name)}"
        ) from None


def _tell(answer: dict[str, Any], question: str, as_json: bool) -> None:
    if as_json:
        from trainbook.cli.shared import print_json

        return print_json(answer)
    from trainbook.study.transfer.rates import check_text, rates_text

    echo({CHECK: check_text, RATES: rates_text, PROXY: proxy_text}[question](answer))


# trainbook transfer --proxy: a search on a small model, and the recipe of the large one.


def find_with_proxy(
    recipe: str, changes: list[str], width: int, name: str | None, runs_dir: Path, quiet: bool, **options: Any
) -> dict[str, Any]:
    """`options` are those of a study. The same command again goes on where it was stopped."""
    from trainbook.study.tune.study_file import read_question

    asked = read_question(recipe, changes, **options)  # a mistake is answered before PyTorch is imported
    from trainbook.errors import Interrupted
    from trainbook.runs import name_of
    from trainbook.study.transfer.proxy import carry_over, proxy_for
    from trainbook.study.tune.run import Study, words_before

    proxy = proxy_for(asked, width)
    question, name = proxy.question, name or f"transfer-{name_of(recipe)}"
    say = (lambda line: None) if quiet else (lambda line: echo(line, err=True))
    lines = _TrialLines(say)
    job = Study(question, runs_dir / name, say=say, watch=lines.show)
    goes_on = job.prepare()
    say(f"{job.folder}{' (resumed)' if goes_on else ''}: {question.budget} with {question.method} at width {width}")
    for line in words_before(question):
        say(f"  {line}")
    try:
        trials = job.run()
    except Interrupted as stop:
        raise Interrupted(f"{stop}. To resume, run the same command with --name {shlex.quote(name)}") from None
    return carry_over(proxy, job.answer(trials), trials, job.folder)


def proxy_text(answer: dict[str, Any]) -> str:
    rows = [("recipe", answer["recipe"]), ("small one", answer["proxy_recipe"])]
    rows.append(("next", f"trainbook train {shlex.quote(answer['recipe'])}"))
    return "\n".join([*answer["conclusion"], "", *(f"{title:<10} {text}" for title, text in rows)])


class _TrialLines:
    """A line for each trial that ends."""

    def __init__(self, say: Any) -> None:
        self.say = say
        self.told: set[int] = set()

    def show(self, trials: Sequence[Trial], plan: dict[str, Any] | None) -> None:
        for each in trials:
            if each.is_over and each.number not in self.told:
                self.told.add(each.number)
                values = "  ".join(f"{path}={value}" for path, value in each.values.items())
                ended = f"{each.loss:.4f}" if each.state == "done" and each.loss is not None else each.state
                self.say(f"  {each.number:>4}  {ended:<10}  {values or 'the unchanged base'}")
