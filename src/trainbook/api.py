"""Trainbook from Python: the commands as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from trainbook.errors import UserError
from trainbook.knobs import Loaded, load, require_length
from trainbook.knobs.aliases import knobs_named
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.own_module import FIT
from trainbook.loop.faults.kinds import must_suit_own_data, must_suit_world, parse
from trainbook.loop.request import ALREADY_FINISHED, Result, Resume, TrainRequest
from trainbook.runs import RunFolder
from trainbook.runs.kinds import must_be_resumable, must_describe_a_run
from trainbook.runs.trust import require_trust, require_trust_of_file, trusting
from trainbook.start_up import end_of
from trainbook.terminal import echo

if TYPE_CHECKING:
    from torch import nn

    from trainbook.loop.fit import CountFunction, LossFunction
    from trainbook.report.card import Card
    from trainbook.report.notebook import ForeignRun, OpenedRun

Source = str | Path | Mapping[str, Any]
FOR_A_NEW_RUN = "To train again, choose another name or delete the folder."
Parameters = ParamSpec("Parameters")


def takes_knobs_as_overrides(first: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """A function that says how knobs are passed to it when it is given one as a keyword. `first`: an example of its
    first argument."""

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        known = signature(function).parameters

        @wraps(function)
        def checked(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
            knobs = {name: value for name, value in keywords.items() if name not in known and knobs_named(name)}
            if knobs:
                overrides = [f"{name}={yaml_value(value)}" for name, value in knobs.items()]
                told = ", ".join(repr(each) if '"' in each else f'"{each}"' for each in overrides)
                raise UserError(
                    f"{', '.join(knobs)}: {function.__name__} takes knobs as a list of overrides, not as keywords: "
                    f"trainbook.{function.__name__}({first}, [{told}])."
                )
            return function(*arguments, **keywords)

        return checked

    return decorate


@takes_knobs_as_overrides('"gpt-tiny"')
def train(
    config: Source | Loaded = "gpt-tiny",
    overrides: Sequence[str] = (),
    *,
    name: str | None = None,
    runs_dir: str | Path = "runs",
    resume: Resume = "auto",
    accept_changes: bool = False,
    quiet: bool = False,
    recipe: str | None = None,
    inject: Sequence[str] = (),
    stop_after: float | None = None,
    trust: bool = False,
) -> Result:
    """Train a recipe, a configuration file or a mapping. An existing run of that name is resumed, unless `resume` is
    "never".

    `inject` injects faults on purpose, such as "nan-gradient@5", but not into a pretraining run that comes first. With
    `stop_after`, the run pauses after that fraction of its steps, evaluated and saved, and can be resumed later; the
    schedule is that of the whole run. `trust`: another run that this one starts from or is configured by may bring its
    own code.
    """
    from trainbook.loop import start

    end_of("Python, imports and configuration")
    if stop_after is not None and not 0 < stop_after <= 1:
        raise UserError(f"stop_after: must be a fraction of the run, > 0 and <= 1, but got {stop_after}.")
    faults = parse(inject)
    must_describe_a_run(config if isinstance(config, str | Path) else recipe)
    if isinstance(config, Loaded) and overrides:
        raise UserError("overrides: cannot be applied to a loaded configuration; pass them to load().")
    loaded = config if isinstance(config, Loaded) else load(config, overrides)
    recipe = str(config) if isinstance(config, str | Path) else recipe
    request = TrainRequest(
        loaded,
        recipe,
        name,
        Path(runs_dir),
        resume,
        accept_changes,
        quiet,
        faults,
        stop_after,
        write_report=(written := _WrittenCard()),
    )
    with trusting(trust):
        require_trust_of_file(recipe, loaded)
        result = start.train(request)
    _show_card(result, written, quiet)
    return _opened(result)


@takes_knobs_as_overrides('"runs/NAME"')
def resume(
    run: str | Path,
    overrides: Sequence[str] = (),
    *,
    runs_dir: str | Path = "runs",
    accept_changes: bool = False,
    quiet: bool = False,
    inject: Sequence[str] = (),
    trust: bool = False,
) -> Result:
    """Resume a run with the configuration in its folder. Injected faults of an earlier process are not repeated.

    `trust`: import the code that the configuration names, even if this user has not trained the run on this machine.
    """
    from trainbook.loop.saved_files import recover

    folder = RunFolder.find(run, runs_dir)
    must_be_resumable(folder)
    recovered = recover(folder)
    must_be_resumable(folder)  # again: a manifest that was lost may be back
    loaded = load(folder.config, overrides, text=recovered.config_text)
    with trusting(trust):
        require_trust(folder, loaded.config)
    # `.` or a link has another name than the folder that it means.
    path = folder.path if folder.path.name == folder.name else folder.path.resolve()
    return train(
        loaded,
        name=folder.name,
        runs_dir=path.parent,
        accept_changes=accept_changes,
        quiet=quiet,
        inject=inject,
        trust=trust,
    )


def fit(
    model: nn.Module,
    data: Iterable[Any],
    *,
    loss: LossFunction,
    count_targets: CountFunction | None = None,
    eval_data: Iterable[Any] | None = None,
    name: str | None = None,
    runs_dir: str | Path = "runs",
    resume: Resume = "auto",
    accept_changes: bool = False,
    quiet: bool = False,
    config: Source | None = None,
    inject: Sequence[str] = (),
    **knobs: Any,
) -> Result:
    """Train your own module with the same loop, run folder, resume and tracking. Knobs are keywords, by any name.

    `loss(model, batch)` returns a mean; or, if `count_targets(batch)` is given, a sum over that many targets.
    `eval_data` holds the validation batches, read again for each evaluation; a mean weighs as much as its batch has
    samples. The first batch of the first evaluation is computed twice, to see whether that gives the same loss.
    `quiet`: no progress, no card at the end.
    The answer's `best` is the best evaluation as a dict, such as `best["loss"]` and `best["step"]`, or None.
    """
    from trainbook.loop.fit import OwnTraining, must_apply_to_fit, must_be_values, must_not_be_eval_data
    from trainbook.loop.start import train_own
    from trainbook.parallel import find_rank_env

    if find_rank_env().world > 1:
        raise UserError("fit trains in one process only: it cannot split your data between ranks.")
    faults = parse(inject)
    must_suit_world(faults, 1)
    must_suit_own_data(faults)
    must_not_be_eval_data(knobs)
    must_be_values(knobs)
    overrides = [f"{knob}={yaml_value(value)}" for knob, value in knobs.items()]
    loaded = load(config, overrides)
    require_length(loaded)
    must_apply_to_fit(loaded)
    request = TrainRequest(
        loaded,
        FIT,
        name,
        Path(runs_dir),
        resume,
        accept_changes,
        quiet,
        faults,
        write_report=(written := _WrittenCard()),
    )
    result = train_own(request, OwnTraining(model, data, loss, count_targets, eval_data))
    _show_card(result, written, quiet)
    return _opened(result)


def open_run(path: str | Path) -> OpenedRun | ForeignRun:
    """Open a run folder: its metrics, events, configuration and manifest; or the log of another tool.

    In a notebook it shows itself. `.frame()` has its metrics as a data frame, `.plot("loss")` is a figure.
    """
    from trainbook.report.notebook import open_any

    return open_any(path)


def explain(name: str) -> dict[str, Any]:
    """Everything known about a knob, by any of its names."""
    from trainbook.knobs import explain_knob

    return explain_knob(name)


def generate(run: str | Path, prompt: str = "", *, trust: bool = False, **options: Any) -> str:
    """The text that a run's model generates after the prompt. `trust`: import the code that the run names."""
    from trainbook.loop.generate import generate_text

    with trusting(trust):
        return "".join(generate_text(RunFolder.open(run, "runs"), prompt, **options))


def _opened(result: Result) -> Result:
    """Its run is one that a notebook shows."""
    from trainbook.report.notebook import OpenedRun

    return replace(result, run=OpenedRun(result.run.path))


class _WrittenCard:
    """The card that was written as the run's report, kept to be shown: the doctor reads the run once."""

    def __init__(self) -> None:
        self.card: Card | None = None

    def __call__(self, run: RunFolder) -> None:
        from trainbook.report import write_report

        self.card = write_report(run)


def _show_card(result: Result, written: _WrittenCard, quiet: bool) -> None:
    """The card of a run that has ended; of several processes, the first one shows it."""
    from trainbook.parallel import find_rank_env
    from trainbook.report import make_card
    from trainbook.terminal import folded

    if not quiet and find_rank_env().rank == 0:
        with suppress(BrokenPipeError):
            if result.ended == ALREADY_FINISHED:
                echo(folded(f"{result.run.path} is already finished: nothing was trained. {FOR_A_NEW_RUN}"))
            echo("")
            echo(folded((written.card or make_card(result.run)).as_text(), indent=13))
