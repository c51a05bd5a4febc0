"""trainbook transfer"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainbook.cli.errors import reports_errors
from trainbook.cli.shared import AsJson, Overrides, Recipe, RunsDir
from trainbook.cli.trust import Trust
from trainbook.errors import UserError
from trainbook.terminal import echo

if TYPE_CHECKING:
    from trainbook.study.transfer.family import Family

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


@reports_errors
def transfer(
    recipe: Recipe,
    overrides: Overrides = None,
    coordinate_check: Annotated[
        bool, typer.Option(CHECK, help="Coordinate check: how activations grow with the width over the first steps.")
    ] = False,
    rates: Annotated[
        bool, typer.Option(RATES, help="Train each size at several learning rates: does the best one stay the same?")
    ] = False,
    proxy: Annotated[
        int | None,
        typer.Option(
            PROXY, metavar="WIDTH", help="Search on a model of this width, and write the recipe of the large model."
        ),
    ] = None,
    by: Annotated[
        Literal["width", "depth", "length", "batch"] | None,
        typer.Option("--by", help="With --rates: what grows. Default: width.", show_default=False),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option("--sizes", metavar="N,N,…", help=f"The sizes, in rising order. Default for widths: {WIDTHS}."),
    ] = None,
    learning_rates: Annotated[
        str | None,
        typer.Option(
            "--learning-rates",
            metavar="RATE,…",
            help="The learning rates. By default the recipe's, halved and doubled three times.",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="With --coordinate-check: the learning rate. Default: 0.01.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="With --coordinate-check: the number of updates. Default: 5.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            min=1,
            help="Runs of each setting. Default: 3 in a check, 1 per learning rate, 3 for each of a proxy's best.",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="With --rates and --proxy: the number of parallel runs.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help="With --proxy: the budget, as in trainbook tune. Default: 32 trials.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="With --proxy: the search method, as in trainbook tune. Default: sobol."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="With --rates and --proxy: the name of the study. An existing one is resumed."),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    picture: Annotated[Path | None, typer.Option("--picture", help="Save the figure to this file (.png).")] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Check whether settings tuned on a small model carry over to a large one, under standard rules or muP."""
    asked = [
        flag for flag, is_asked in ((CHECK, coordinate_check), (RATES, rates), (PROXY, proxy is not None)) if is_asked
    ]
    if len(asked) != 1:
        raise UserError(f"pass one of {CHECK}, {RATES} and {PROXY} WIDTH.")
    given = {"--by": by, "--sizes": sizes, "--learning-rates": learning_rates, "--rate": rate, "--steps": steps}
    given |= {"--workers": workers, "--name": name, "--budget": budget, "--method": method, "--picture": picture}
    for flag, value in given.items():
        if value is not None and asked[0] not in BELONGS[flag]:
            raise UserError(f"{flag}: has no effect with {asked[0]}; it is for {' and '.join(BELONGS[flag])}.")
    if name is not None:
        from trainbook.runs import check_name

        check_name(name, "study")
    if picture is not None:
        from trainbook.charts.figure import check_path

        check_path(picture)
    from trainbook.knobs import load, overrides_from_arguments
    from trainbook.runs.trust import is_in_run_folder, require_trust_of_file

    if is_in_run_folder(recipe):
        require_trust_of_file(recipe, load(recipe, overrides_from_arguments(overrides or [])))
    if proxy is not None:
        from trainbook.cli.proxy import find_with_proxy

        changes = overrides_from_arguments(overrides or [])
        options = {"budget": budget, "method": method, "seeds": seeds, "workers": workers}
        answer = find_with_proxy(recipe, changes, proxy, name, runs_dir, as_json, **options)
        return _tell(answer, PROXY, as_json)
    family = _family(recipe, overrides or [], by or "width", sizes)
    say = (lambda line: None) if as_json else (lambda line: echo(line, err=True))
    if coordinate_check:
        if rate is not None and not 0 < rate < math.inf:
            raise UserError(f"--rate: must be a number above 0, but got {rate:g}.")
        from trainbook.study.transfer import coordinate_check as check

        answer = check(family, steps=steps or 5, seeds=seeds or 3, rate=rate or 0.01, say=say)
    else:
        answer = _rates(family, recipe, learning_rates, seeds or 1, workers or 1, name, runs_dir, say)
    _tell(answer, asked[0], as_json)  # first: a picture that cannot be written takes no answer with it
    if picture is not None:
        from trainbook.charts import transfer as charts

        (charts.draw_coordinate_check if coordinate_check else charts.draw_rates)(answer, picture)
        say(f"picture: {picture}")


def _family(recipe: str, overrides: list[str], by: Any, sizes: str | None) -> Family:
    from trainbook.knobs import load, overrides_from_arguments, require_length
    from trainbook.study.transfer import AXES, Family

    loaded = load(recipe, overrides_from_arguments(overrides))
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


def _rates(
    family: Family,
    recipe: str,
    rates: str | None,
    seeds: int,
    workers: int,
    name: str | None,
    runs_dir: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    from trainbook.errors import Interrupted
    from trainbook.report import write_report
    from trainbook.runs import default_name, name_of
    from trainbook.study.transfer.rates import RateStudy, checked_rates, grid, train_cell

    chosen = checked_rates(rates) if rates is not None else grid(family.base.config.optimizer.learning_rate)
    name = name or default_name(f"{name_of(recipe)}-rates", runs_dir)
    try:
        return RateStudy(family, chosen, seeds, runs_dir / name, train_cell, workers, say, write_report).run()
    except (Interrupted, KeyboardInterrupt) as stop:
        told = str(stop).partition(".")[0] or "interrupted"
        raise Interrupted(f"{told}. To resume, run the same command with --name {name}") from None


def _tell(answer: dict[str, Any], question: str, as_json: bool) -> None:
    if as_json:
        from trainbook.cli.output import print_json

        return print_json(answer)
    from trainbook.cli.proxy import proxy_text
    from trainbook.study.transfer.render import check_text, rates_text

    echo({CHECK: check_text, RATES: rates_text, PROXY: proxy_text}[question](answer))
