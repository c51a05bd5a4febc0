"""Where values are searched: each knob's range and scale, as a number in [0, 1) that stands for a value, and back.

Equal steps of that number are equal steps of the knob's scale: on a log scale each decade has the same share of the
draws, and on a log scale of 1 - x so have [.9, .99] and [.99, .999].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt

from trainbook.errors import ResumeError
from trainbook.knobs import Loaded, load, section_types
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Declaration
from trainbook.knobs.dumping import origin_text, yaml_value
from trainbook.knobs.knob import Scale
from trainbook.knobs.loading import ALTERNATIVES
from trainbook.knobs.origin import Origin
from trainbook.knobs.text import read_file
from trainbook.knobs.values import BrokenLaw, check, show
from trainbook.runs import write_text_atomically

LAST = math.nextafter(1.0, 0.0)
DIGITS = 6  # significant ones of a drawn value: more say nothing, and are hard to read
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Dimension:
    """One searched knob."""

    path: str
    scale: Scale
    low: float = math.nan
    high: float = math.nan
    choices: tuple[Any, ...] = ()
    step: float | None = None  # only low, low + step, low + 2 steps ...
    is_whole: bool = False
    only_if: tuple[tuple[str, Any], ...] = ()  # searched only where these knobs have these values

    def at(self, unit: float) -> Any:
        """The value that a number in [0, 1) stands for."""
        if self.scale == "choice":
            return self.choices[min(int(unit * len(self.choices)), len(self.choices) - 1)]
        count = self._steps
        if count is not None and self.scale == "linear":
            return self._typed(self.low + min(int(unit * count), count - 1) * (self.step or 1))
        low, high = self.to_scale(self.low), self.to_scale(self.high)
        value = self._from_scale(low + unit * (high - low))
        if count is not None:
            value = self.low + min(max(round((value - self.low) / (self.step or 1)), 0), count - 1) * (self.step or 1)
        return self._typed(value)

    def place(self, value: Any) -> float:
        """The number that stands for a value; that of the nearer end for one outside, and the middle for none."""
        if value is None and value not in self.choices:
            return 0.5
        if self.scale == "choice":
            return (self.choices.index(value) + 0.5) / len(self.choices) if value in self.choices else 0.0
        count = self._steps
        value = min(max(float(value), self.low), self.high)  # pyright: ignore[reportArgumentType]
        if count is not None and self.scale == "linear":
            # A range may end within a step: what lies there belongs to the last one.
            return (min(round((value - self.low) / (self.step or 1)), count - 1) + 0.5) / count
        low, high = self.to_scale(self.low), self.to_scale(self.high)
        return min(max((self.to_scale(value) - low) / (high - low), 0.0), LAST)

    def has_place(self, value: Any) -> bool:
        """A base may have a value that its scale has no place for, such as a rate of decay of 0, or none at all."""
        if self.scale == "choice":
            return value in self.choices
        if value is None or isinstance(value, str):
            return False
        return value > 0 if self.scale == "log" else value < 1 if self.scale == "log_one_minus" else True

    def holds(self, value: Any) -> bool:
        """Whether a value lies in the range."""
        return self.has_place(value) and (self.scale == "choice" or self.low <= value <= self.high)

    def to_scale(self, value: float) -> float:
        """A value on the scale on which equal steps count the same; rising with the value."""
        if self.scale == "log":
            return math.log(value)
        return -math.log1p(-value) if self.scale == "log_one_minus" else value

    def between(self, low: float, high: float) -> Dimension:
        """The same knob between two places of its scale, which may lie outside of its range; never beyond its law."""
        floor, ceiling = self.lawful
        low, high = max(low, floor), min(high, ceiling)
        if low >= high:  # nothing there is allowed
            return self
        ends = [self._from_scale(low), self._from_scale(high)]
        if self._steps is not None:  # on the same steps as before
            grid = self.step or 1
            first, last = self._steps_within(floor, ceiling, grid)
            places = [min(max(round((end - self.low) / grid), first), last) for end in ends]
            places[1] = min(max(places[1], places[0] + 1), last)
            places[0] = max(min(places[0], places[1] - 1), first)
            if places[0] >= places[1]:
                return self
            ends = [self.low + place * grid for place in places]
        return replace(self, low=ends[0], high=ends[1])

    def _steps_within(self, floor: float, ceiling: float, grid: float) -> tuple[float, float]:
        """The first and the last step from `low` that lie between two places of the scale."""
        least, most = self._from_scale(floor), self._from_scale(ceiling) if math.isfinite(ceiling) else math.inf
        if self.scale == "log_one_minus":
            most = min(most, 1.0)
        first = math.ceil((least - self.low) / grid - 1e-9) if math.isfinite(least) else -math.inf
        last = math.floor((most - self.low) / grid + 1e-9) if math.isfinite(most) else math.inf
        if self.scale == "log" and self.low + first * grid <= 1e-9 * grid:  # a log scale has no zero
            first += 1
        if self.scale == "log_one_minus" and self.low + last * grid >= 1 - 1e-9 * grid:
            last -= 1
        return first, last

    def is_searched_with(self, values: Values) -> bool:
        return all(values.get(path) == wanted for path, wanted in self.only_if)

    @property
    def num_values(self) -> int | None:
        """None: as many as one likes."""
        return len(self.choices) if self.scale == "choice" else self._steps

    @property
    def text(self) -> str:
        """As a person reads it."""
        if self.scale == "choice":
            words = "one of " + ", ".join(show(choice).strip("'") for choice in self.choices)
        else:
            scale = {"linear": "", "log": ", log scale", "log_one_minus": ", log scale of 1 − x"}[self.scale]
            steps = f", in steps of {show(self.step)}" if self.step and self.step != 1 else ""
            words = f"{_short(self.low)} to {_short(self.high)}{scale}{steps}"
        when = " and ".join(f"{path} is {show(value)}" for path, value in self.only_if)
        return f"{words}; only where {when}" if when else words

    @property
    def _steps(self) -> int | None:
        if self.step is None and not self.is_whole:
            return None
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9) + 1

    @property
    def lawful(self) -> tuple[float, float]:
        """The places of the scale between which the knob's own law holds."""
        low, high = -math.inf, math.inf
        for bound in by_path()[self.path].field.metadata:
            if isinstance(bound, Ge | Gt):
                low = float(bound.ge if isinstance(bound, Ge) else bound.gt)  # pyright: ignore[reportArgumentType]
            elif isinstance(bound, Le | Lt):
                high = float(bound.le if isinstance(bound, Le) else bound.lt)  # pyright: ignore[reportArgumentType]
        if self.scale == "log":
            return (math.log(low) if low > 0 else -math.inf), (math.log(high) if math.isfinite(high) else math.inf)
        if self.scale == "log_one_minus":
            return self.to_scale(low) if math.isfinite(low) else low, self.to_scale(high) if high < 1 else math.inf
        return low, high

    def _from_scale(self, place: float) -> float:
        if self.scale == "log":
            return math.exp(place)
        return -math.expm1(-place) if self.scale == "log_one_minus" else place

    def _typed(self, value: float) -> Any:
        if self.is_whole:
            return round(value)
        if self.scale == "log_one_minus":  # what is left of 1 is what counts
            return float(f"{1 - _rounded(1 - value):.15g}")
        return _rounded(value)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _short(value: float) -> str:
    return show(float(f"{value:.4g}"))


@dataclass(frozen=True)
class Space:
    dimensions: tuple[Dimension, ...]

    def at(self, units: Sequence[float], given: Values | None = None) -> dict[str, Any]:
        """The values of a point, one number for each dimension; a knob whose condition is not met has none.

        `given` are values of knobs that are not searched, for conditions that ask for them.
        """
        drawn = {each.path: each.at(unit) for each, unit in zip(self.dimensions, units, strict=True)}
        while True:  # what is left out may be what another one's condition asks for
            known = {**(given or {}), **drawn}
            left = {path: drawn[path] for path in drawn if self._by_path[path].is_searched_with(known)}
            if left == drawn:
                return left
            drawn = left

    @property
    def _by_path(self) -> dict[str, Dimension]:
        return {each.path: each for each in self.dimensions}

    def place(self, values: Values) -> list[float]:
        """The point of values; a knob that has none is put in the middle."""
        return [each.place(values[each.path]) if each.path in values else 0.5 for each in self.dimensions]

    @property
    def num_points(self) -> int | None:
        """How many different ones there are at most; None: no end of them."""
        counts = [each.num_values for each in self.dimensions]
        return None if None in counts else math.prod(count for count in counts if count is not None)

    def __len__(self) -> int:
        return len(self.dimensions)

    def as_json(self) -> list[dict[str, Any]]:
        facts = [asdict(each) for each in self.dimensions]
        return [{name: None if value != value else value for name, value in each.items()} for each in facts]

    @classmethod
    def from_json(cls, facts: Sequence[Mapping[str, Any]]) -> Space:
        return cls(tuple(_from_json(each) for each in facts))


def _from_json(facts: Mapping[str, Any]) -> Dimension:
    declaration = by_path()[facts["path"]]
    known = {**facts, "only_if": tuple((path, value) for path, value in facts["only_if"])}
    known["choices"] = tuple(check(declaration, choice) for choice in facts["choices"])
    for end in ("low", "high"):
        known[end] = math.nan if known[end] is None else known[end]
    return Dimension(**known)


# A knob as one that is searched: what the knob says of itself, and over it what a study says, by law


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


# What all runs of a study share, as a file: beside runs that were trained with it, it is not another one.


BASE = "base.yaml"


def keep_base(path: Path, text: str, has_runs: bool) -> None:
    """Write it, unless it is there. ResumeError: it has other values, and there are runs."""
    if path.is_file():
        if read_file(path) == text:
            return
        changed = _differing(path, text) if has_runs else []
        if changed:
            raise ResumeError(
                f"{path} no longer matches the base of this study: {', '.join(changed)} differ. Its runs were trained "
                "with the old values: start a new study under another --name."
            )
    write_text_atomically(path, text)


def _differing(path: Path, text: str) -> list[str]:
    """The knobs by which a base's file differs from what it should be."""
    there, asked = load(path), load(path, text=text)
    return [knob for knob in by_path() if there.get(knob) != asked.get(knob)]


def base_text(loaded: Loaded, found: Mapping[str, Any] | None = None, why: str = "found") -> str:
    """What was asked for, and over it what was found; no defaults: those may depend on what a trial changes.

    What was asked for is said to be taken over: beside another schedule or optimizer it may be without effect.
    """
    found = dict(found or {})
    asked_for = written_values(loaded, found)
    lines: list[str] = []
    for section, kind in section_types().items():
        knobs = [f"{section}.{name}" for name in kind.model_fields]
        written = [path for path in knobs if path in found or path in asked_for]
        lines += [f"{section}:"] if written else []
        for path in written:
            value = found.get(path, loaded.get(path))
            origin = why if path in found else _taken_over(path, loaded.origins[path])
            lines.append(f"  {path.removeprefix(section + '.')}: {yaml_value(value)}  # {origin}")
    return "\n".join([*lines, ""])


def _taken_over(path: str, origin: Origin) -> str:
    return origin_text(path, replace(origin, is_taken_over=True))


# All trials must apply the same number of updates, to the same data, at the learning rate that they were given. The
# guard of a trial only ends it when it diverges.
TRIAL_GUARD = {
    "guard.skip_threshold": None,
    "guard.quarantine": False,
    "guard.max_rollbacks": 0,
    "guard.remedy": "none",
}


def trials_text(loaded: Loaded) -> str:
    """The base as the trials train it."""
    return base_text(loaded, trial_guard(loaded), "the same updates in all trials")


def trial_guard(loaded: Loaded) -> dict[str, Any]:
    """What of the guard differs in trials; the user's own choices stay."""
    if not loaded.config.guard.enabled:
        return {}
    return {
        path: value
        for path, value in TRIAL_GUARD.items()
        if loaded.get(path) != value and not loaded.origins[path].is_the_users
    }


def written_values(loaded: Loaded, over: Iterable[str] = ()) -> dict[str, Any]:
    """Of a configuration what is not a default, nor an alternative to one of these."""
    displaced = set().union(*(group for group in ALTERNATIVES if group & set(over)))
    return {
        path: loaded.get(path)
        for path, origin in loaded.origins.items()
        if origin.kind not in ("default", "derived") and path not in displaced
    }
