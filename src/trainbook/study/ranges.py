"""A knob as one that is searched: what the knob says of itself, and over it what a study says, by law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainbook.knobs.config import Declaration
from trainbook.knobs.values import BrokenLaw, check, show
from trainbook.study.space import Dimension

MOST_STEPS = 1_000_000_000  # of a range
SCALES = ("linear", "log", "log_one_minus", "choice")


def dimension(
    declaration: Declaration,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[Any] | None = None,
    scale: str | None = None,
    step: float | None = None,
    only_if: Sequence[tuple[str, Any]] = (),
) -> Dimension:
    """What the knob knows of its search, and over it what is given here. BrokenLaw says what is wrong."""
    known = declaration.knob.search
    if scale is not None and scale not in SCALES:
        raise BrokenLaw(f"scale must be one of {', '.join(SCALES)}, but got {show(scale)}.")
    has_range = low is not None or high is not None
    if choices is not None and (has_range or scale not in (None, "choice") or step is not None):
        raise BrokenLaw("has both choices and a range, step or scale. Keep one of the two.")
    if choices is not None or (not has_range and known is not None and known.scale == "choice" and scale is None):
        given = choices if choices is not None else (known.choices if known else ())
        return _of_choices(declaration, given, tuple(only_if))
    if scale == "choice":
        raise BrokenLaw("has the scale choice, but no choices.")
    if known is None and (low is None or high is None):
        raise BrokenLaw("has no default search range: set low and high.")
    known_range = known if known is not None and known.scale != "choice" else None
    chosen = scale or (known_range.scale if known_range else None)
    if chosen is None:
        raise BrokenLaw("has no default scale: set scale to linear, log or log_one_minus.")
    low = low if low is not None else known_range.low if known_range else None
    high = high if high is not None else known_range.high if known_range else None
    if low is None or high is None:
        raise BrokenLaw("has no default search range: set both low and high.")
    ends = _ends(declaration, low, high)
    _must_be_a_range(ends, chosen, step)
    is_whole = all(isinstance(end, int) for end in ends)
    if is_whole and step is not None and not float(step).is_integer():
        raise BrokenLaw(f"takes whole numbers only, so step must be one too, but got {show(step)}.")
    return Dimension(
        declaration.path,
        chosen,  # pyright: ignore[reportArgumentType]
        float(ends[0]),
        float(ends[1]),
        step=step,
        is_whole=is_whole,
        only_if=tuple(only_if),
    )


def _of_choices(declaration: Declaration, given: Any, only_if: tuple[tuple[str, Any], ...]) -> Dimension:
    if not isinstance(given, list | tuple) or not given:
        raise BrokenLaw(f"choices must be a list of at least one value, but got {show(given)}.")
    checked = tuple(check(declaration, choice) for choice in given)
    twice = next((choice for place, choice in enumerate(checked) if choice in checked[:place]), None)
    if twice is not None:
        raise BrokenLaw(f"has {show(twice)} twice among its choices.")
    return Dimension(declaration.path, "choice", choices=checked, only_if=only_if)


def _ends(declaration: Declaration, low: Any, high: Any) -> tuple[float, float]:
    ends = []
    for name, end in (("low", low), ("high", high)):
        if isinstance(end, bool) or not isinstance(end, int | float):
            raise BrokenLaw(f"{name} must be a number, but got {show(end)}.")
        try:
            ends.append(check(declaration, end))
        except BrokenLaw as law:
            # The end of an open range is never drawn, and may be what the knob itself must not be.
            raise BrokenLaw(f"{name} {law.message}", law.hint) from None
    return ends[0], ends[1]


def _must_be_a_range(ends: tuple[float, float], scale: str, step: float | None) -> None:
    low, high = ends
    if low == high:
        raise BrokenLaw(
            f"the range is empty: low and high are both {show(low)}. To use one value, put the knob under fixed."
        )
    if low > high:
        raise BrokenLaw(f"the range is reversed: low {show(low)} is above high {show(high)}.")
    if scale == "log" and low <= 0:
        raise BrokenLaw(f"a log scale cannot include zero: low must be > 0, but got {show(low)}.")
    if scale == "log_one_minus" and high >= 1:
        raise BrokenLaw(f"a log scale of 1 − x cannot include 1: high must be < 1, but got {show(high)}.")
    if step is not None and (isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step <= high - low):
        raise BrokenLaw(f"step must be > 0 and at most high − low = {show(high - low)}, but got {show(step)}.")
    if step is not None and (high - low) / step > MOST_STEPS:
        least = float(f"{(high - low) / MOST_STEPS:.3g}")
        raise BrokenLaw(f"step must be at least {show(least)}, or left out, but got {show(step)}.")
