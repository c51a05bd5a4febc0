"""Options that a verb does not have: `--fp16` and `--learning_rate 1e-3` name knobs, `--metod` is a mistake."""

from __future__ import annotations

import os
import shlex
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from trainbook.nearest import nearest
from trainbook.terminal import echo, visible

UsageError: Any = typer.BadParameter.__bases__[0]  # of the command-line package that typer brings

# Options of other programs, with ours for the same thing: the one that the verb has.
GPU_COUNTS = ("--count", "--gpu-count", "--num-gpus", "--n-gpus", "--ngpus", "--devices", "--world-size")
PROCESS_COUNTS = ("--nproc-per-node", "--nproc_per_node", "--num-processes", "--num_processes", "--nproc", "--world")
ALSO_KNOWN_AS = {
    **dict.fromkeys(("--trials", "--n-trials", "--num-trials"), ("--budget",)),
    **dict.fromkeys((*GPU_COUNTS, *PROCESS_COUNTS), ("--world", "--nproc")),
}
LIKENESS = 0.8  # how near an option must be to one of the verb's own to be taken for a slip of it

# What the first word is, with an example, where it is not a recipe.
COMES_FIRST = {
    "resume": ("the name of a run", "first-try"),
    "doctor": ("a run, a log, a recipe or a configuration file", "first-try"),
    "data": ("the data, a recipe or a configuration file", "reviews.csv"),
    "tune": ("a study file or a recipe", "gpt-tiny"),
    "ablate": ("a study file", "study.yaml"),
}

LARGEST = 2**31 - 1  # of what is counted
LARGEST_FLOAT = 1e30
BOUNDS = {
    "seed": 2**63 - 1,  # any number that a generator takes
    "seeds": 1_000,
    "nproc": 1_024,
    "world": 1_000_000,
    "steps": 10_000_000,  # as training.max_steps
    "noise_after": 10_000_000,
}


class Verb(TyperCommand):
    """A flag takes no value, and its help names no type. A number has a bound."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        written = list(args)  # as parsing uses them up
        try:
            rest = super().parse_args(ctx, args)
        except UsageError as error:
            error.message = visible(error.message)  # which names words of the command line, such as a file's name
            if not isinstance(error, typer.BadParameter) or (told := _told_as_ours(error, written)) is None:
                raise
            echo(f"error: {told}", err=True)
            raise typer.Exit(2) from None
        for name, value in ctx.params.items():
            if (law := _broken_by(name, value)) is not None:
                shown = f"{value:.3g}" if isinstance(value, float) else _short(value)
                echo(f"error: --{name.replace('_', '-')}: must be {law}, but got {shown}.", err=True)
                raise typer.Exit(2)
        return rest


def _told_as_ours(error: typer.BadParameter, args: list[str]) -> str | None:
    """What is wrong with the number of an option, in the words of all other mistakes; None if it is something else."""
    flags = getattr(error.param, "opts", [])
    least = getattr(error.param, "min", getattr(getattr(error.param, "type", None), "min", None))
    is_whole = "integer" in error.message or least is not None
    if not is_whole and "valid number" not in error.message and "float" not in error.message:
        return None
    pairs = [each.split("=", 1) for each in args if "=" in each] + list(map(list, pairwise(args)))
    given = next((value for flag, value in pairs if flag in flags), None)
    if given is None:
        return None
    bound = "" if least is None else f" >= {least}"
    return f"{flags[0]}: must be a {'whole ' if is_whole else ''}number{bound}, but got {given}."


def _broken_by(name: str, value: Any) -> str | None:
    """The law that a number is too large for; None where it is not, or where it is no number."""
    if isinstance(value, float):
        return None if abs(value) <= LARGEST_FLOAT else f"a number of at most {LARGEST_FLOAT:g}"
    if not isinstance(value, int):
        return None
    largest = BOUNDS.get(name, LARGEST)
    return None if abs(value) <= largest else f"at most {largest}"


def _short(value: int) -> str:
    digits = str(value)
    return digits if len(digits) <= 24 else f"a number of {len(digits)} digits"


class Verbs(TyperGroup):
    """The same for the options before the verb."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            error.message = visible(error.message)
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))


def without_types_of_flags(params: list[Any]) -> list[Any]:
    for each in params:
        if getattr(each, "is_flag", False):
            each.display_type_rich = each.display_type = lambda ctx: None
    return params


class KnobsAllowed(Verb):
    """Options that name a knob are passed on as overrides; any other unknown option is a mistake."""

    ignore_unknown_options = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = _long_options(self.get_params(ctx))
        for argument in args[: args.index("--")] if "--" in args else args:
            name = argument.partition("=")[0]
            if name.startswith("--") and name not in own and not names_a_knob(name):
                echo(f"error: {name}: {_unknown(name, own, ctx)}", err=True)
                raise typer.Exit(2)
        rest = super().parse_args(ctx, args)
        _must_not_begin_with_an_override(ctx, self.params)
        return rest


def _long_options(params: list[Any]) -> list[str]:
    names = (name for each in params for name in (*each.opts, *each.secondary_opts))
    return [name for name in names if name.startswith("--")]


def names_a_knob(option: str) -> bool:
    """Also with its section, whether or not that section has it: the configuration says what is wrong then."""
    from trainbook.knobs.aliases import SPECIAL, WRAPPERS, knobs_named, section_named

    name = option.removeprefix("--").replace("-", "_")
    return "." in name or bool(knobs_named(name)) or name in SPECIAL or name in WRAPPERS or bool(section_named(name))


def _unknown(name: str, own: list[str], ctx: Any) -> str:
    """What was probably meant: an option of this verb, one of another verb, or a knob."""
    from trainbook.knobs.aliases import nearest_knobs_hint

    if meant := _meant(name, own):
        return f"no such option. Did you mean {meant}?"
    others = [each.name for each in _other_verbs(ctx) if name in _long_options(each.params)]
    if others:
        verbs = " and ".join([", ".join(others[:-1]), others[-1]] if others[1:] else others)
        return f"no such option of trainbook {ctx.info_name}. It is one of trainbook {verbs}."
    hint = nearest_knobs_hint(name.removeprefix("--").replace("-", "_")) or f"See: trainbook {ctx.info_name} --help"
    return f"no such option, and no such knob. {hint}"


def _other_verbs(ctx: Any) -> list[Any]:
    verbs = ctx.parent.command.commands if ctx.parent is not None else {}
    return [verb for name, verb in verbs.items() if name != ctx.info_name]


def _meant(name: str, own: list[str]) -> str | None:
    known = next((each for each in ALSO_KNOWN_AS.get(name, ()) if each in own), None)
    return known or nearest(name, own, LIKENESS)


def _must_not_begin_with_an_override(ctx: Any, params: list[Any]) -> None:
    """The first word says what to work on; without it, the first key=value would be taken for a file."""
    first = next(each.name for each in params if not each.opts[0].startswith("-"))
    word, others = ctx.params.get(first), ctx.params.get("overrides") or []
    if word is None or not _is_an_override(word) or os.path.exists(word):
        return
    what, example = COMES_FIRST.get(ctx.info_name) or ("a recipe or a configuration file", _recipe_for([word, *others]))
    command = shlex.join(["trainbook", ctx.info_name, example, word, *others])
    echo(f"error: {word}: {what} must come first, as in: {command}", err=True)
    raise typer.Exit(2)


def _is_an_override(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return word.startswith("--") or (bool(equals) and key.replace(".", "_").isidentifier())


def _recipe_for(overrides: list[str]) -> str:
    """A small one whose model can learn the task."""
    from trainbook.cli.data import MODEL_OF_TASK

    values = [text.partition("=")[2] for text in overrides if text.partition("=")[0] in ("task", "training.task")]
    return f"{MODEL_OF_TASK.get(values[-1], 'gpt') if values else 'gpt'}-tiny"
