"""What may be spent, and which knobs are worth searching for it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trainbook.errors import ConfigError, UserError
from trainbook.knobs.aliases import by_path
from trainbook.knobs.config import Declaration
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.loading import load
from trainbook.knobs.measured import largest_effect
from trainbook.knobs.origin import Loaded
from trainbook.knobs.values import BrokenLaw, show
from trainbook.study.space import Dimension, dimension, written_values

Unit = Literal["trials", "GPU-hours", "tokens"]
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|[0-9_]+)?(?:\.\d+)?(?:e[+-]?\d+)?"  # a comma is only between thousands
BUDGET = re.compile(rf"\s*({NUMBER})\s*(?:([kmbt])(?![a-z]))?\s*([a-z-]*)\s*", re.IGNORECASE)
UNITS: dict[str, Unit] = {
    "": "trials", "trial": "trials", "trials": "trials",
    "h": "GPU-hours", "gpu-hour": "GPU-hours", "gpu-hours": "GPU-hours", "hours": "GPU-hours", "hour": "GPU-hours",
    "token": "tokens", "tokens": "tokens",
}  # fmt: skip
THOUSANDS = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}

# Trials that a search over so many knobs needs, the first for the base as it is. For Adam's knobs these are the numbers
# of Google's tuning playbook: below 10 the rate only, from 10 on beta1 with it, above 25 more.
NEEDED = (3, 10, 26)
FOR_EACH_MORE = 12
MOST_TRIALS = 100_000
BOUNDS: dict[Unit, tuple[float, float]] = {
    "trials": (1, MOST_TRIALS),
    "GPU-hours": (0.001, 1e8),  # less than the start of one trial; more than any cluster has given
    "tokens": (1, 1e15),
}

# What these change is the cost of a step, and the larger one nearly always wins: nothing to choose without being asked.
CHANGES_COST = ("model.hidden_size", "model.num_hidden_layers", "batch.global_batch_size")


@dataclass(frozen=True)
class Budget:
    amount: float
    unit: Unit = "trials"

    def __str__(self) -> str:
        amount = f"{self.amount:,.0f}" if self.amount >= 1000 or float(self.amount).is_integer() else f"{self.amount:g}"
        return f"{amount} {self.unit.removesuffix('s') if self.amount == 1 else self.unit}"

    @property
    def meaning(self) -> str | None:
        """What the unit stands for, where that is not plain."""
        if self.unit == "tokens":
            return "tokens are the training tokens of all trials together, repetitions included"
        if self.unit == "GPU-hours":
            return (
                "GPU-hours are the training time of all trials together, repetitions included; workers that share a "
                "GPU share its hours, and without a GPU each worker's hours count"
            )
        return None

    @property
    def verb(self) -> str:
        return "is" if self.amount == 1 else "are"


def parse_budget(given: Any) -> Budget:
    """32, "32 trials", "2.5 GPU-hours", "4e9 tokens" or "4B tokens"."""
    law = 'must be a number of trials (32), of GPU-hours ("2.5 GPU-hours") or of tokens ("4B tokens")'
    found = (
        BUDGET.fullmatch(str(given)) if isinstance(given, str | int | float) and not isinstance(given, bool) else None
    )
    unit = UNITS.get(found[3].lower()) if found else None
    if found is None or unit is None or (found[2] and unit != "tokens"):  # 30m are no minutes, nor that many trials
        raise UserError(f"budget: {law}, but got {show(given)}.")
    try:
        amount = float(found[1].replace(",", "").replace("_", "")) * THOUSANDS[(found[2] or "").lower()]
    except ValueError:
        raise UserError(f"budget: {law}, but got {show(given)}.") from None
    least, most = BOUNDS[unit]
    if amount <= 0:
        raise UserError(f"budget: must be > 0, but got {show(given)}.")
    if unit == "trials" and math.isfinite(amount) and not amount.is_integer():
        raise UserError(f"budget: must be a whole number of trials, but got {show(given)}.")
    if not least <= amount <= most:
        is_of_tokens = unit == "trials" and amount <= BOUNDS["tokens"][1]
        meant = f' Did you mean "{amount:g} tokens"?' if is_of_tokens else ""
        raise UserError(f"budget: must be from {least:,g} to {most:,.0f} {unit}, but got {show(given)}.{meant}")
    return Budget(amount, unit)


def needed(num_knobs: int, arms: int = 1) -> int:
    """Trials for a search over so many knobs; each value of what is compared has to be tuned for itself."""
    each = 1 if num_knobs == 0 else NEEDED[min(num_knobs, len(NEEDED)) - 1]
    return arms * (each + max(0, num_knobs - len(NEEDED)) * FOR_EACH_MORE)


def affordable(trials: int) -> int:
    """How many knobs a search of so many trials can do justice to."""
    number = 0
    while needed(number + 1) <= trials:
        number += 1
    return number


def by_importance() -> list[Declaration]:
    """The knobs that have a rank, the first one first; within a rank those first that mattered most in our studies."""
    ranked = [each for each in by_path().values() if each.knob.rank is not None]
    return sorted(ranked, key=lambda each: (each.knob.rank or 0, -(largest_effect(each.path) or 0.0)))


def choose(
    loaded: Loaded, trials: int, settled: Collection[str] = (), arms: Sequence[Mapping[str, Any]] = ({},)
) -> tuple[list[Dimension], list[str]]:
    """The knobs that a search of so many trials is for, in their order of importance, and why in words.

    `settled` are knobs that have a role already; `arms` the values that are compared, which are tuned on the same
    points: a knob that is idle with one of them cannot be searched there.
    """
    found, asked_for, idle = [], [], []
    for declaration in by_importance():
        if declaration.path in settled:
            continue
        effects = [_has_effect(loaded, declaration, values) for values in arms]
        if not all(effects):
            idle += [declaration.path] if any(effects) else []
            continue
        if declaration.path in CHANGES_COST:
            asked_for.append(declaration.path)
            continue
        try:
            found.append(dimension(declaration))
        except BrokenLaw:  # not one to search
            continue
    chosen = found[: affordable(trials)]
    names = [each.path for each in chosen]
    words = ["no knob is left to search: each has a role already, or no effect"]
    if names:
        knobs = "knob" if len(names) == 1 else "knobs"
        words = [f"{trials} trials are enough to search {_listed(names)}, the most important {knobs}"]
    if len(found) > len(chosen):
        words.append(f"{found[len(chosen)].path} would be added at {needed(len(chosen) + 1)} trials")
    if asked_for:
        words.append(
            f"{_listed(asked_for)} change the cost of a step: they are searched only if a study file lists them"
        )
    if idle:
        words.append(
            f"{_listed(idle)} {'has' if len(idle) == 1 else 'have'} no effect with some of the compared values: "
            "searched only if a study file lists them with only_if"
        )
    return chosen, words


def _has_effect(loaded: Loaded, declaration: Declaration, compared: Mapping[str, Any]) -> bool:
    """Not beta1 with sgd: the configuration's own laws know. Asked with a value that is not the default."""
    search = declaration.knob.search
    if search is None:
        return False
    ends = search.choices or (search.low, search.high)
    value = next(end for end in ends if end != declaration.field.default)
    written = {**written_values(loaded, [declaration.path, *compared]), **compared, declaration.path: value}
    try:
        load(None, [f"{path}={yaml_value(value)}" for path, value in written.items()])
    except ConfigError as error:
        return not any(problem.name == declaration.path for problem in error.problems)
    return True


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
