"""Options that a verb does not have: `--fp16` and `--learning_rate 1e-3` are other names of knobs, `--metod` a slip."""

from __future__ import annotations

import difflib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

LIKENESS = 0.8  # below it, a name that no knob has is told as an unknown knob


LARGEST = 2**31 - 1  # of what is counted; a seed may be any number that a generator takes
LARGEST_SEED = 2**63 - 1
LARGEST_FLOAT = 1e30


class Verb(TyperCommand):
    """A flag takes no value, and its help names no type. A number has a bound."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for name, value in ctx.params.items():
            if (law := _broken_by(name, value)) is not None:
                shown = f"{value:.3g}" if isinstance(value, float) else _short(value)
                typer.echo(f"error: --{name.replace('_', '-')}: must be {law}, but got {shown}.", err=True)
                raise typer.Exit(2)
        return rest


def _broken_by(name: str, value: Any) -> str | None:
    """The law that a number is too large for; None where it is not, or where it is no number."""
    if isinstance(value, float):
        return None if abs(value) <= LARGEST_FLOAT else f"a number of at most {LARGEST_FLOAT:g}"
    if not isinstance(value, int):
        return None
    largest = LARGEST_SEED if name == "seed" else LARGEST
    return None if abs(value) <= largest else f"at most {largest}"


def _short(value: int) -> str:
    digits = str(value)
    return digits if len(digits) <= 24 else f"a number of {len(digits)} digits"


class Verbs(TyperGroup):
    """The same for the options before the verb."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))


def without_types_of_flags(params: list[Any]) -> list[Any]:
    for each in params:
        if getattr(each, "is_flag", False):
            each.display_type_rich = each.display_type = lambda ctx: None
    return params


class KnobsAllowed(Verb):
    """Unknown options are passed on as overrides, unless one is a slip of the verb's own."""

    ignore_unknown_options = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = [name for each in self.params for name in each.opts if name.startswith("--")]
        for argument in args:
            name = argument.partition("=")[0]
            if name.startswith("--") and name not in own and (meant := _meant(name, own)):
                typer.echo(f"error: {name}: no such option. Did you mean {meant}?", err=True)
                raise typer.Exit(2)
        return super().parse_args(ctx, args)


def _meant(name: str, own: list[str]) -> str | None:
    near = next(iter(difflib.get_close_matches(name, own, 1, LIKENESS)), None)
    if near is None:
        return None
    from trainbook.knobs.aliases import SPECIAL, knobs_named

    knob = name.removeprefix("--").replace("-", "_")
    return None if knobs_named(knob) or knob in SPECIAL else near
