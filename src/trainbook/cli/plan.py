"""trainbook plan"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainbook.cli.shared import AsJson, Overrides, Recipe, Trust, reports_errors
from trainbook.terminal import echo

if TYPE_CHECKING:
    from trainbook.errors import TrainbookError
    from trainbook.knobs import Loaded
    from trainbook.plan.gpus import Gpu
    from trainbook.plan.measured import MeasuredRun
    from trainbook.plan.subject import PlanSubject

EXAMPLES = """[bold]Examples[/bold]

trainbook plan gpt-tiny --gpu RTX-4090

trainbook plan llama-1b --vocab-size 32000 --gpu H100 --world 8 --price-per-hour 2.5

trainbook plan my.yaml batch.per_device_train_batch_size=64 --measure
"""

GpuName = Annotated[
    str | None,
    typer.Option(
        "--gpu", metavar="NAME", help="The GPU: H100, A100-40GB, RTX-4090, … By default the one of this machine."
    ),
]
GpuFile = Annotated[
    Path | None,
    typer.Option(
        "--gpus",
        metavar="FILE",
        help=(
            "A YAML file of other GPUs: a name, and under it memory_gb, bandwidth_gb, watts, fp16, fp32, bf16, tf32, "
            "fp8."
        ),
    ),
]
Measured = Annotated[
    Path | None,
    typer.Option(
        "--measured",
        metavar="FILE",
        help="The result of an earlier --measure, to correct the formulas. With --measure: the file to write it to.",
    ),
]


@reports_errors
def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    gpu: GpuName = None,
    gpus: GpuFile = None,
    world: Annotated[int, typer.Option("--world", metavar="N", help="The number of GPUs.")] = 1,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", metavar="N", help="The vocabulary size, if no file states it.")
    ] = None,
    num_labels: Annotated[
        int | None,
        typer.Option("--num-labels", metavar="N", help="The number of labels, for a task that predicts labels."),
    ] = None,
    price_per_hour: Annotated[
        str | None,
        typer.Option(
            "--price-per-hour", metavar="PRICE", help="The price of one GPU: 2.5, or with a currency symbol, €2.5."
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Train a few steps on this machine, and correct the plan.")
    ] = False,
    largest: Annotated[
        bool,
        typer.Option("--largest", help="With --measure: find the largest and the fastest micro-batch."),
    ] = False,
    noise_after: Annotated[
        int | None,
        typer.Option(
            "--noise-after", metavar="N", help="With --measure: estimate the gradient noise scale after N updates."
        ),
    ] = None,
    measured: Measured = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what a run needs: memory, time, cost, whether it fits a GPU, and what would make it fit."""
    from trainbook.knobs import load, overrides_from_arguments
    from trainbook.plan import answer
    from trainbook.runs.kinds import must_describe_a_run

    must_describe_a_run(recipe)
    symbol, price = _price(price_per_hour)
    _must_measure(measure, largest, noise_after)
    if measure and measured is not None:
        _must_have_a_place(measured)
    loaded = load(recipe, overrides_from_arguments(overrides or []))
    found: MeasuredRun | None = None
    if measured is not None and not measure:
        from trainbook.plan.measured import read_measurement

        found = read_measurement(measured)
    subject, notes = subject_of(loaded, gpu, gpus, world, vocab_size, num_labels, found)
    failure: TrainbookError | None = None
    if measure:
        from trainbook.runs.trust import require_trust_of_file

        require_trust_of_file(recipe, loaded)
        subject, failure = _measured(subject, largest, noise_after, measured, quiet=as_json)
    _answer(answer.plan(subject, price_per_hour=price, notes=notes), symbol, as_json)
    if failure is not None:
        raise failure


def subject_of(
    loaded: Loaded,
    gpu: str | None,
    gpus: Path | None = None,
    world: int = 1,
    vocab_size: int | None = None,
    num_labels: int | None = None,
    found: MeasuredRun | None = None,
) -> tuple[PlanSubject, tuple[str, ...]]:
    """What is planned, and remarks on what was not said."""
    from trainbook.errors import UserError
    from trainbook.plan.subject import PlanSubject
    from trainbook.plan.vocabulary import assumption, labels, vocabulary

    if world < 1:
        raise UserError(f"--world: must be >= 1, but got {world}.")
    config = loaded.config
    number, remark = labels(config, num_labels)
    chosen = _gpu(config.training.device, gpu, gpus)
    subject = PlanSubject(config, loaded.origins, vocabulary(config, vocab_size), chosen, world, number, found)
    return subject, tuple(each for each in (assumption(config, vocab_size), remark) if each is not None)


def plan_or_reason(loaded: Loaded, world: int = 1, num_labels: int | None = None) -> tuple[dict[str, Any] | None, str]:
    """Of a run on this machine, whose data has so many labels; where paper cannot say, why not."""
    from trainbook.errors import UserError
    from trainbook.plan import answer
    from trainbook.plan.vocabulary import ASSUMED_LABELS

    try:
        subject, notes = subject_of(loaded, None, world=world, num_labels=num_labels)
        notes = tuple("2 labels are assumed" if note == ASSUMED_LABELS else note for note in notes)
        return answer.plan(subject, notes=notes), ""
    except UserError as error:
        return None, str(error)


def _gpu(device: str, name: str | None, file: Path | None) -> Gpu | None:
    """The one that is named; else this machine's, unless the run is to be on the CPU."""
    from trainbook.errors import UserError
    from trainbook.plan.gpus import find_gpu, gpu_here, known_gpus

    if file is not None and str(file).isdecimal() and not file.exists():
        raise UserError(f"--gpus: must be a YAML file of GPUs, but got {file}. Did you mean --world {file}?")
    known = known_gpus(file)
    if name is not None:
        return find_gpu(name, known)
    here = gpu_here(known) if device != "cpu" else None
    if here is not None and here.gpu is None:
        raise UserError(
            f"--gpu: this machine has a {here.name}, which is not in the table. Name a similar one, or describe it in "
            f"a file: --gpus FILE. The known ones are {', '.join(known)}."
        )
    return here.gpu if here is not None else None


HIGHEST_PRICE = 1e9  # of one hour, in any currency


def _price(text: str | None) -> tuple[str, float | None]:
    """A number, perhaps with a symbol before or behind it."""
    from trainbook.errors import UserError

    if text is None:
        return "", None
    found = re.fullmatch(r"\s*([^\d\s.,+-]*)\s*(\d+(?:\.\d+)?)\s*([^\d\s.,+-]*)\s*", text)
    if found is None or (found[1] and found[3]) or float(found[2]) > HIGHEST_PRICE:
        law = f"a number >= 0 and at most {HIGHEST_PRICE:,.0f}, perhaps with a symbol as in €2.5"
        raise UserError(f"--price-per-hour: must be {law}, but got {text if len(text) <= 40 else text[:37] + '...'}.")
    return found[1] or found[3], float(found[2])


def _must_measure(measure: bool, largest: bool, noise_after: int | None) -> None:
    from trainbook.errors import UserError

    for flag, is_given in (("--largest", largest), ("--noise-after", noise_after is not None)):
        if is_given and not measure:
            raise UserError(f"{flag}: has no effect without --measure.")
    if noise_after is not None and noise_after < 1:
        raise UserError(f"--noise-after: must be >= 1, but got {noise_after}.")


def _must_have_a_place(file: Path) -> None:
    """Asked before what may take minutes. Where Path would raise, os.path says no."""
    from trainbook.errors import UserError

    if os.path.isdir(file):
        raise UserError(f"--measured: must be a file to write to, but {file} is a folder.")
    if not os.path.isdir(file.parent):
        raise UserError(f"--measured: {file} cannot be written: there is no folder {file.parent}.")


def _measured(
    subject: PlanSubject, largest: bool, noise_after: int | None, file: Path | None, *, quiet: bool
) -> tuple[PlanSubject, TrainbookError | None]:
    """A few steps on this machine: the plan with what they showed, and why that is not all, or could not be written."""
    from dataclasses import replace

    from trainbook.errors import Interrupted, RunError
    from trainbook.plan.measured import measurement_of
    from trainbook.runs import write_text_atomically
    from trainbook.runs.jsonl import dumps
    from trainbook.study.measure import measure

    def say(text: str) -> None:
        if not quiet:
            echo(text, err=True)

    found = measure(
        subject.config,
        device=subject.config.training.device,
        data="auto" if noise_after is None else "real",
        vocab_size=subject.vocab_size,
        largest=largest,
        noise_after=noise_after,
        say=say,
    )
    if found["interrupted"] and found["peak_bytes"] is None and not found["out_of_memory"]:
        raise Interrupted(
            "interrupted: nothing was measured yet, and nothing was written. To start again, run the same command"
        )
    failure: TrainbookError | None = None
    if found["interrupted"]:
        kept = "" if file is None else f" and {file} has it"
        failure = Interrupted(
            f"interrupted: the plan uses what was measured until then{kept}. To measure the rest, run the same "
            "command again"
        )
    if file is not None:
        try:
            write_text_atomically(file, dumps(found) + "\n")
            if failure is None:
                say(f"written to {file}")
        except RunError as error:  # what took minutes is shown first
            failure = error
    return replace(subject, measurement=measurement_of(found, "measure")), failure


def _answer(facts: dict[str, Any], symbol: str, as_json: bool) -> None:
    if as_json:
        from trainbook.cli.shared import print_json

        return print_json(facts)
    from trainbook.plan.render import render_plan
    from trainbook.terminal import new_console

    render_plan(facts, new_console(), symbol)
