"""Options that a verb does not have: `--fp16` and `--learning_rate 1e-3` are other names of knobs, `--metod` a slip."""

from __future__ import annotations

import difflib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

LIKENESS = 0.8  # below it, a name that no knob has is told as an unknown knob


class Verb(TyperCommand):
    """A flag takes no value, and its help names no type."""

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types_of_flags(super().get_params(ctx))


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
