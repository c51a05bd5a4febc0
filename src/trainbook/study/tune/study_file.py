"""The question of a study: a base, what is compared, what is searched, how, and for how much. From a file or a recipe.

base: gpt-tiny                     a recipe's name, or a configuration file beside this one
fixed: {training.max_steps: 200}   what all trials have, over the base
scientific: {optimizer.type: [adamw, lion]}      what is compared; each value is tuned for itself
nuisance:                          what is searched: a knob alone has its own range and scale
  learning_rate: {low: 1e-4, high: 3e-2}
  beta1:
method: sobol
budget: 32
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainbook.errors import ConfigError, Problem, UserError
from trainbook.knobs import Loaded, load, recipes, require_length
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.text import YamlBlock, YamlEntry, parse, read_file
from trainbook.knobs.values import show
from trainbook.nearest import nearest
from trainbook.runs.schema import METRICS
from trainbook.study.space import BASE, Dimension, Space, base_text
from trainbook.study.tune.budget import Budget, needed, parse_budget
from trainbook.study.tune.methods import METHODS
from trainbook.study.tune.pruning import PRUNINGS
from trainbook.study.tune.roles import Roles, read_roles

KEYS = ("base", "metric", "scientific", "nuisance", "fixed", "method", "budget", "seeds", "seed", "workers", "pruning")
PLAIN = {"method": METHODS, "pruning": PRUNINGS}
COUNTS = {"seeds": (0, 1_000), "seed": (0, 2**63 - 1), "workers": (1, 1_024)}  # the least and the most of each
DEFAULTS: dict[str, Any] = {"method": "sobol", "pruning": "none", "seeds": 3, "seed": 0, "workers": 1, "budget": 32}


@dataclass(frozen=True)
class StudyQuestion:
    base: str  # as the user named it
    loaded: Loaded  # the base, and over it what is fixed
    roles: Roles
    metric: str
    method: str
    budget: Budget
    seeds: int  # how often the base, and up to three trials that are better, are repeated
    seed: int  # of the search itself
    workers: int
    pruning: str

    @property
    def higher_is_better(self) -> bool:
        return bool(METRICS[self.metric].higher_is_better)

    @property
    def least_trials(self) -> int:
        """That can do justice to what is searched."""
        nuisance, arms = self.roles.nuisance, self.roles.num_arms
        if self.method == "one-at-a-time" and nuisance is not None:
            return arms * (1 + 2 * len(nuisance))
        return needed(1 if nuisance is None else len(nuisance), arms)

    def as_json(self) -> dict[str, Any]:
        """What makes it this study and no other: all but how many workers there are."""
        config = self.loaded.config.model_dump(mode="json")
        nuisance = self.roles.nuisance
        return {
            "configuration": {
                f"{name}.{knob}": value for name, knobs in config.items() for knob, value in knobs.items()
            },
            "metric": self.metric,
            "scientific": Space(self.roles.scientific).as_json(),
            "nuisance": None if nuisance is None else Space(nuisance).as_json(),
            "fixed": sorted(path for path, _ in self.roles.fixed),
            "method": self.method,
            "budget": str(self.budget),
            "seeds": self.seeds,
            "seed": self.seed,
            "pruning": self.pruning,
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], loaded: Loaded, base: str) -> StudyQuestion:
        """As the ledger has it, for a worker."""
        nuisance = None if facts["nuisance"] is None else Space.from_json(facts["nuisance"]).dimensions
        fixed = tuple((path, loaded.get(path)) for path in facts["fixed"])
        roles = Roles(Space.from_json(facts["scientific"]).dimensions, nuisance, fixed)
        plain = {name: facts[name] for name in ("metric", "method", "seeds", "seed", "pruning")}
        return cls(base, loaded, roles, budget=parse_budget(facts["budget"]), workers=1, **plain)


def read_question(source: str | Path, overrides: Sequence[str] = (), **options: Any) -> StudyQuestion:
    """From a study file, or a recipe's name or file; options that are not None go over what the file says.

    ConfigError has every problem that was found, with its line.
    """
    where = str(source)
    block, problems = _entries(source)
    entries = {entry.name: entry for entry in block.entries}
    for name, entry in entries.items():
        if name not in KEYS:
            near = nearest(name, KEYS)
            hint = f"Did you mean {near}?" if near else f"A study has {', '.join(KEYS)}."
            problems.append(Problem(place_of(where, entry), name, "unknown key.", hint))
    roles = read_roles(entries, where, problems)
    settings = {name: _setting(name, entries, options, where, problems) for name in DEFAULTS}
    if problems:
        raise ConfigError(problems)
    base = str(entries["base"].value) if "base" in entries else where
    source = base_beside(entries["base"], where) if "base" in entries else source
    fixed = roles.fixed_overrides(overrides)
    try:
        loaded = load_base(source, base, [*fixed, *overrides])
    except ConfigError as error:
        raise ConfigError([_at_its_line(each, fixed, overrides, roles, where) for each in error.problems]) from None
    roles.must_not_meet(loaded, [override.partition("=")[0].strip() for override in overrides])
    roles.must_be_met(loaded)
    metric = metric_of(entries, loaded, where)
    question = StudyQuestion(base, loaded, roles, metric, **settings)
    place = "--budget" if options.get("budget") is not None else place_of(where, entries.get("budget"))
    _must_be_enough(question, place)
    _must_be_lawful_at_the_ends(question, where)
    return question


def _entries(source: str | Path) -> tuple[YamlBlock, list[Problem]]:
    """A file with `base` is a study; every other file, and a packaged recipe, is a base to search around."""
    if isinstance(source, str) and source in recipes.names():
        return YamlBlock(()), []
    path = Path(source)
    if not path.exists():
        recipes.path(str(source))  # raises: says what was probably meant
    block, problems = parse(read_file(path), str(source))
    names = {entry.name for entry in block.entries}
    if "base" in names:
        return block, problems
    if names & {"scientific", "nuisance", "budget"}:
        problem = Problem(str(source), "base", "a study needs a base: a recipe's name, or a configuration file.")
        raise ConfigError([*problems, problem])
    return YamlBlock(()), []


def is_study(source: str | Path) -> bool:
    return "base" in {entry.name for entry in _entries(source)[0].entries}


def _setting(
    name: str, entries: dict[str, YamlEntry], options: dict[str, Any], where: str, problems: list[Problem]
) -> Any:
    option = options.get(name)
    entry = entries.get(name)
    value = option if option is not None else entry.value if entry is not None else DEFAULTS[name]
    place = f"--{name}" if option is not None else place_of(where, entry)
    if name == "budget":
        try:
            return parse_budget(value)
        except UserError as error:
            problems.append(Problem(place, name, str(error).removeprefix("budget: ")))
            return None
    if name in PLAIN:
        value = "none" if value in (None, False) else value
        if value not in tuple(PLAIN[name]):  # a list has no hash
            near = nearest(str(value), PLAIN[name])
            hint = f"Did you mean {near}?" if near else ""
            message = f"must be one of {', '.join(PLAIN[name])}, but got {show(value)}."
            problems.append(Problem(place, name, message, hint))
        return value
    least, most = COUNTS[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        problems.append(Problem(place, name, f"must be a whole number >= {least}, but got {show(value)}."))
    elif value > most:
        problems.append(Problem(place, name, f"must be at most {most}, but got {value:.3g}."))
    return value


def base_beside(entry: YamlEntry, where: str) -> str | Path:
    """The base that a study names: a recipe, or a file beside the study, or where we are."""
    base = entry.value
    if not isinstance(base, str):
        message = f"must be a recipe's name or a configuration file, but got {show(base)}."
        raise ConfigError([Problem(place_of(where, entry), "base", message)])
    if base in recipes.names():
        return base
    for path in (Path(where).parent / base, Path(base)):
        if path.is_file():
            return path
    try:
        return recipes.path(base)  # raises: says what was probably meant
    except UserError as error:
        raise ConfigError([Problem(place_of(where, entry), "base", str(error))]) from None


def _at_its_line(problem: Problem, fixed: Sequence[str], overrides: Sequence[str], roles: Roles, where: str) -> Problem:
    """What a study fixes is loaded as an override, but it stands in the study."""
    names = {each.partition("=")[0] for each in fixed}
    place = roles.places[problem.name] if problem.name in names else "override" if overrides or not fixed else where
    parts = [place if each == "override" else each for each in problem.where.split(", ")]
    return replace(problem, where=", ".join(dict.fromkeys(parts)))


def load_base(source: str | Path, base: str, overrides: Sequence[str]) -> Loaded:
    loaded = load(source, overrides)
    require_length(loaded)
    if loaded.config.evaluation.eval_strategy == "no":
        message = "a study compares trials by their evaluation, but evaluation is off."
        raise ConfigError(
            [Problem(base, "evaluation.eval_strategy", message, "Set data.validation or data.validation_ratio.")]
        )
    return loaded


def metric_of(entries: dict[str, YamlEntry], loaded: Loaded, where: str) -> str:
    entry = entries.get("metric")
    name = loaded.config.evaluation.metric_for_best_model if entry is None else str(entry.value)
    if name in METRICS and METRICS[name].higher_is_better is not None and "eval" in METRICS[name].splits:
        if entry is not None:
            _must_be_had(name, loaded, place_of(where, entry))
        return name
    known = [each.name for each in METRICS.values() if each.higher_is_better is not None and "eval" in each.splits]
    near = nearest(name, known)
    hint = f"Did you mean {near}?" if near else ""
    raise ConfigError([Problem(place_of(where, entry), "metric", f"no evaluation has a metric {show(name)}.", hint)])


def _must_be_had(metric: str, loaded: Loaded, place: str) -> None:
    """The same laws as where a run is to keep its best by it."""
    path = "evaluation.metric_for_best_model"
    try:
        load_values(loaded, {path: metric})
    except ConfigError as error:
        broken = [problem for problem in error.problems if problem.name == path]
        if broken:
            raise ConfigError([Problem(place, "metric", broken[0].message, broken[0].hint)]) from None


def _must_be_enough(question: StudyQuestion, place: str) -> None:
    """Known at once where the budget is in trials; otherwise the base's own cost has to be seen first."""
    nuisance, arms, least = question.roles.nuisance, question.roles.num_arms, question.least_trials
    if question.budget.unit == "trials" and question.budget.amount < least:
        asked = (
            "the first knob in the order of importance"
            if nuisance is None
            else f"{len(nuisance)} searched knob{'s' if len(nuisance) != 1 else ''}"
        )
        each = f", for each of {arms} compared values" if arms > 1 else ""
        message = f"{question.budget} {question.budget.verb} too few for {asked}{each}: at least {least} are needed."
        raise ConfigError([Problem(place, "budget", message, "Search fewer knobs, or raise the budget.")])


def _must_be_lawful_at_the_ends(question: StudyQuestion, where: str) -> None:
    """A knob without effect beside the others, or a value that breaks a law, is found before anything is trained: what
    is compared, and of what is searched the ends or all choices."""
    base = load_values(question.loaded, {})
    nuisance = question.roles.nuisance or ()
    for compared in question.roles.arms:
        try:
            load_values(base, compared)
        except ConfigError as error:
            broken = [problem for problem in error.problems if problem.name not in [each.path for each in nuisance]]
            if broken and compared:
                place = question.roles.places.get(next(iter(compared)), where)
                raise ConfigError([Problem(place, *_told(each)) for each in broken]) from None
    for each, compared in itertools.product(nuisance, question.roles.arms):
        if each.only_if:
            continue
        for unit in _looked_at(each):
            try:
                load_values(base, {**compared, each.path: each.at(unit)})
            except ConfigError as error:
                mine = [problem for problem in error.problems if problem.name == each.path]
                if mine:
                    raise ConfigError([Problem(_line(where, question, each), *_told(mine[0]))]) from None


def _looked_at(each: Dimension) -> list[float]:
    number = len(each.choices or ())
    return [(place + 0.5) / number for place in range(number)] if number else [0.0, 0.999999]


def _told(problem: Problem) -> tuple[str, str, str]:
    return problem.name, problem.message, problem.hint


def _line(where: str, question: StudyQuestion, each: Dimension) -> str:
    return question.roles.places.get(each.path, where)


def load_values(loaded: Loaded, values: dict[str, Any]) -> Loaded:
    """A configuration with other values, by all of its laws, as a trial loads it: what a recipe has chosen is asked for
    by nobody, and may be without effect beside the others."""
    overrides = [f"{path}={yaml_value(value)}" for path, value in values.items()]
    return load(Path(BASE), overrides, text=base_text(loaded))


def place_of(where: str, entry: YamlEntry | None) -> str:
    return f"{where}:{entry.line}" if entry is not None and entry.line else where
