"""The knob: one hyperparameter and everything known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Scale = Literal["linear", "log", "log_one_minus", "choice"]


@dataclass(frozen=True)
class Case:
    """The usual value in one situation, such as "fine-tuning" or "large model"."""

    when: str
    value: Any
    why: str = ""


@dataclass(frozen=True)
class SearchRange:
    """Where and on which scale to look for a better value."""

    scale: Scale
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Knob:
    what: str  # one sentence: what it is
    why: str  # why it matters
    raised: str  # what happens when it is raised, switched on, or taken from the top of its choices
    lowered: str  # what happens when it is lowered or switched off
    values: Mapping[str, str] = field(default_factory=dict)  # for choices: what each one means
    cases: tuple[Case, ...] = ()  # the usual value by situation
    usual: tuple[float, float] | None = None  # outside of this, `explain` remarks on the value
    search: SearchRange | None = None  # None: not worth searching
    rank: int | None = None  # importance for tuning, 1 first; None: not tuned
    interacts: tuple[str, ...] = ()  # paths of knobs that move with this one
    symptoms: tuple[str, ...] = ()  # what it treats
    sources: tuple[str, ...] = ()  # where the advice comes from
    correction: str = ""  # where common advice about it errs, and what is so
    aliases: tuple[str, ...] = ()  # names by which others know it
    value_aliases: Mapping[Any, Any] = field(default_factory=dict)  # foreign value (lower case) -> value here


def knob(
    default: Any,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    min_length: int | None = None,
    **facts: Any,
) -> Any:
    """Declare a knob as a field of a section: its default, its law, and its facts."""
    declared = Knob(**facts)
    bounds = dict(gt=gt, ge=ge, lt=lt, le=le, min_length=min_length)
    law: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
    info = Field(default=default, description=declared.what, **law)
    info.metadata.append(declared)
    return info


class Section(BaseModel):
    """A group of knobs. Frozen: a configuration never changes after it was checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
