"""The question of an ablation: a base, the arms that are compared with it, data sets, seeds. From a file.

base: gpt-tiny                              a recipe's name, or a configuration file beside this one
fixed: {training.max_steps: 200}            what all runs have, over the base
arms:                                       what is compared with the unchanged base, the control
  no-bias: {model.bias: false}
  rmsnorm: {model.norm: rmsnorm}
factors:                                    or a factorial: every combination is an arm
  optimizer.beta2: [0.95, 0.999]
  optimizer.epsilon: [1e-8, 1e-6]
data:                                       data sets, as what they change; without it, the base's own
  shakespeare: {data.source: shakespeare.txt}
  bible: {data.source: bible.txt}
rates: {points: 5, ratio: 2}                learning rates that each arm tries on each data set: the base's, times and
                                            divided by powers of the ratio; or a list; or `none`: the base's alone
rate_seeds: 1                               runs at each learning rate
seeds: 5                                    runs at the best one, with seeds that the search has not seen
epsilon: 0.01                               a smaller effect does not matter: a share of the loss, or points of a score
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbook.errors import ConfigError, Problem, UserError
from trainbook.knobs import Loaded
from trainbook.knobs.text import YamlBlock, YamlEntry, parse, read_file
from trainbook.knobs.values import show
from trainbook.nearest import nearest
from trainbook.runs.schema import METRICS
from trainbook.study.tune.roles import LENGTHS, read_roles
from trainbook.study.tune.study_file import base_beside, load_base, load_values, metric_of, place_of

KIND = "ablate"
KEYS = (
    "base", "fixed", "arms", "factors", "data", "rates", "rate_seeds", "seeds", "epsilon", "metric", "workers",
    "lengths"
)  # fmt: skip
COUNTS = {"rate_seeds": (1, 1_000), "seeds": (2, 1_000), "workers": (1, 1_024)}  # the least and the most of each
DEFAULTS: dict[str, Any] = {"rate_seeds": 1, "seeds": 5, "workers": 1, "epsilon": 0.01}
CONTROL = "control"  # the arm that changes nothing
ONLY = "data"  # the data set of a study that names none
RATE = "optimizer.learning_rate"
POINTS, RATIO = 5, 2.0  # of learning rates, unless said
MOST_RUNS = 100_000
SEARCH_SEEDS = 1_000_000  # added to those of the comparison, however many there will be
Values = Mapping[str, Any]


@dataclass(frozen=True)
class AblateQuestion:
    base: str  # as the user named it
    loaded: Loaded  # the base, and over it what is fixed
    arms: Mapping[str, Values]  # without the control
    data: Mapping[str, Values]
    rates: tuple[float, ...]  # in ascending order; empty: each arm has its own, and none is searched
    rate_seeds: int
    seeds: int
    epsilon: float
    metric: str
    workers: int

    @property
    def higher_is_better(self) -> bool:
        return bool(METRICS[self.metric].higher_is_better)

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Arm and data set, the control first."""
        return list(itertools.product((CONTROL, *self.arms), self.data))

    @property
    def num_runs(self) -> int:
        searched = sum(len(self.rates_of(arm)) for arm, _ in self.cells)
        return searched * self.rate_seeds + len(self.cells) * self.seeds

    def rates_of(self, arm: str) -> tuple[float, ...]:
        """That are searched: none, if the arm is one of them."""
        return () if RATE in self.arms.get(arm, {}) else self.rates

    def values_of(self, cell: tuple[str, str]) -> dict[str, Any]:
        arm, data = cell
        return {**self.data[data], **self.arms.get(arm, {})}

    @property
    def first_seed(self) -> int:
        return self.loaded.config.training.seed

    @property
    def final_seeds(self) -> list[int]:
        return list(range(self.first_seed, self.first_seed + self.seeds))

    @property
    def search_seeds(self) -> list[int]:
        """Others than those of the comparison: the best of a search is chosen for its luck, too."""
        return [self.first_seed + SEARCH_SEEDS + each for each in range(self.rate_seeds)]

    def as_json(self) -> dict[str, Any]:
        """What makes it this study and no other: all but how many workers there are."""
        config = self.loaded.config.model_dump(mode="json")
        return {
            "kind": KIND,
            "configuration": {
                f"{name}.{knob}": value for name, knobs in config.items() for knob, value in knobs.items()
            },
            "arms": {name: dict(values) for name, values in self.arms.items()},
            "data": {name: dict(values) for name, values in self.data.items()},
            "rates": list(self.rates),
            "rate_seeds": self.rate_seeds,
            "seeds": self.seeds,
            "epsilon": self.epsilon,
            "metric": self.metric,
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], loaded: Loaded, base: str) -> AblateQuestion:
        """As the ledger has it, for a worker."""
        plain = {name: facts[name] for name in ("arms", "data", "rate_seeds", "seeds", "epsilon", "metric")}
        return cls(base, loaded, rates=tuple(facts["rates"]), workers=1, **plain)


def is_more(name: str, old: Any, new: Any) -> bool:
    """By what a study may be extended: more seeds, and further arms and data sets."""
    if name == "seeds":
        return new > old
    return name in ("arms", "data") and all(new.get(each) == values for each, values in old.items())


def read_ablation(source: str | Path, overrides: Sequence[str] = (), **options: Any) -> AblateQuestion:
    """Options that are not None go over what the file says. ConfigError has every problem that was found, with its
    line."""
    where = str(source)
    path = Path(source)
    block, problems = parse(read_file(path), where)
    entries = {entry.name: entry for entry in block.entries}
    reader = _Reader(where, entries, problems)
    reader.must_be_known()
    settings = {name: reader.setting(name, options.get(name)) for name in DEFAULTS}
    arms, combinations, data = reader.named("arms"), reader.factorial(), reader.named("data") or {ONLY: {}}
    if not arms and not combinations and not problems:
        problems.append(Problem(where, "arms", "a study needs arms or factors: what is compared with the base."))
    for name in {CONTROL} & set(arms):
        problems.append(Problem(where, f"arms.{name}", "is the name of the unchanged base. Choose another one."))
    roles = read_roles({name: entries[name] for name in ("fixed",) if name in entries}, where, problems)
    if "base" not in entries:
        problems.append(Problem(where, "base", "a study needs a base: a recipe's name, or a configuration file."))
    if problems:
        raise ConfigError(problems)
    base = str(entries["base"].value)
    loaded = load_base(base_beside(entries["base"], where), base, [*roles.fixed_overrides(overrides), *overrides])
    arms |= {name: arm for name, arm in combinations.items() if not _is_base(arm, loaded)}
    rates = reader.rates(loaded)
    metric = metric_of(entries, loaded, where)
    if problems:
        raise ConfigError(problems)
    question = AblateQuestion(base, loaded, arms, data, rates, metric=metric, **settings)
    _must_be_lawful(question, reader.places)
    if question.num_runs > MOST_RUNS:
        raise UserError(f"{where}: {question.num_runs:,} runs are asked for; a study has at most {MOST_RUNS:,}.")
    return question


class _Reader:
    def __init__(self, where: str, entries: Mapping[str, YamlEntry], problems: list[Problem]) -> None:
        self.where, self.entries, self.problems = where, entries, problems
        self.places: dict[str, str] = {}  # file and line of each arm and data set

    def must_be_known(self) -> None:
        for name, entry in self.entries.items():
            if name not in KEYS:
                near = nearest(name, KEYS)
                hint = f"Did you mean {near}?" if near else f"An ablation has {', '.join(KEYS)}."
                self.problems.append(Problem(place_of(self.where, entry), name, "unknown key.", hint))

    @property
    def lengths_are_free(self) -> bool:
        """Whether arms may train for longer than others, as the file says."""
        entry = self.entries.get("lengths")
        if entry is not None and entry.value not in ("free", "equal"):
            message = f"must be equal or free, but got {show(entry.value)}."
            if not any(each.name == "lengths" for each in self.problems):
                self._broken(entry, "lengths", message)
        return entry is not None and entry.value == "free"

    def named(self, key: str) -> dict[str, dict[str, Any]]:
        """Names, and the knobs that each changes."""
        entry = self.entries.get(key)
        if entry is None or entry.value is None:
            return {}
        if not isinstance(entry.value, YamlBlock):
            self._broken(entry, key, f"must be a mapping of names to knobs, but got {show(entry.value)}.")
            return {}
        found = {}
        for each in entry.value.entries:
            self.places[each.name] = place_of(self.where, each)
            if not isinstance(each.value, YamlBlock) or not each.value.entries:
                self._broken(each, f"{key}.{each.name}", f"must be a mapping of knobs, but got {show(each.value)}.")
                continue
            values = dict(read_roles({"fixed": YamlEntry("fixed", each.value)}, self.where, self.problems).fixed)
            for path in set(values) & set(LENGTHS) if key == "arms" and not self.lengths_are_free else ():
                message = "must be the same in all arms: a longer run nearly always wins."
                hint = "Fix it, or say 'lengths: free' if the length is what the study is about."
                self.problems.append(Problem(self.places[each.name], path, message, hint))
            found[each.name] = values
        return found

    def factorial(self) -> dict[str, dict[str, Any]]:
        entry = self.entries.get("factors")
        if entry is None or entry.value is None:
            return {}
        if not isinstance(entry.value, YamlBlock):
            self._broken(entry, "factors", f"must be a mapping of knobs to values, but got {show(entry.value)}.")
            return {}
        roles = read_roles({"scientific": YamlEntry("scientific", entry.value)}, self.where, self.problems)
        self.places |= roles.places
        return {"+".join(f"{path}={show(value)}" for path, value in arm.items()): arm for arm in roles.arms if arm}

    def setting(self, name: str, option: Any) -> Any:
        entry = self.entries.get(name)
        value = option if option is not None else entry.value if entry is not None else DEFAULTS[name]
        place = f"--{name.replace('_', '-')}" if option is not None else place_of(self.where, entry)
        if name == "epsilon":
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                self.problems.append(Problem(place, name, f"must be a number between 0 and 1, but got {show(value)}."))
            return value
        least, most = COUNTS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            message = f"must be a whole number from {least} to {most:,}, but got {show(value)}."
            self.problems.append(Problem(place, name, message))
        return value

    def rates(self, loaded: Loaded) -> tuple[float, ...]:
        entry, base = self.entries.get("rates"), loaded.config.optimizer.learning_rate
        value = None if entry is None else entry.value
        if entry is not None and value in (None, "none", False):
            return ()
        if isinstance(value, list):
            if not value or not all(isinstance(each, int | float) and 0 < each < 1e6 for each in value):
                self._broken(entry, "rates", f"must be learning rates above 0, but got {show(value)}.")
                return ()
            return tuple(sorted({float(each) for each in value}))
        points, ratio = POINTS, RATIO
        if isinstance(value, YamlBlock):
            given = {each.name: each.value for each in value.entries}
            points, ratio = given.pop("points", points), given.pop("ratio", ratio)
            if given:
                self._broken(entry, "rates", f"has no '{next(iter(given))}': it takes points and ratio.")
        elif entry is not None:
            self._broken(entry, "rates", f"must be a list, points and ratio, or none, but got {show(value)}.")
        if isinstance(points, bool) or not isinstance(points, int) or not 1 <= points <= 99:
            self._broken(entry, "rates", f"points must be a whole number from 1 to 99, but got {show(points)}.")
            return ()
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 1 < ratio <= 1000:
            self._broken(entry, "rates", f"ratio must be above 1, but got {show(ratio)}.")
            return ()
        return tuple(float(f"{base * ratio ** (place - points // 2):.6g}") for place in range(points))

    def _broken(self, entry: YamlEntry | None, name: str, message: str) -> None:
        self.problems.append(Problem(place_of(self.where, entry), name, message))


def _is_base(values: Values, loaded: Loaded) -> bool:
    return all(loaded.get(path) == value for path, value in values.items())


def _must_be_lawful(question: AblateQuestion, places: Mapping[str, str]) -> None:
    """Check every arm on every data set before anything is trained, and refuse an arm that equals the base."""
    base = load_values(question.loaded, {})
    for cell in question.cells:
        arm, data = cell
        place = places.get(arm) or places.get(next(iter(question.arms.get(arm, {})), "")) or places.get(data, arm)
        values = question.values_of(cell)
        if rates := question.rates_of(arm):
            values = {**values, RATE: rates[0]}
        try:
            changed = load_values(base, values)
        except ConfigError as error:
            raise ConfigError([Problem(place, each.name, each.message, each.hint) for each in error.problems]) from None
        if arm != CONTROL and _is_base(question.arms[arm], question.loaded):
            message = "changes nothing: the base has these values already."
            raise ConfigError([Problem(place, f"arms.{arm}", message)])
        if changed.config.evaluation.metric_for_best_model != question.loaded.config.evaluation.metric_for_best_model:
            message = "changes what runs are judged by. Set it in fixed."
            raise ConfigError([Problem(place, "evaluation.metric_for_best_model", message)])
