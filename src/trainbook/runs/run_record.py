"""A record: what is known about a run, whichever tool wrote it. The doctor and compare read records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainbook.errors import NewerRun, UserError
from trainbook.knobs.config import Config, declarations
from trainbook.knobs.own_module import FIT, WATCH, applies_to_fit
from trainbook.runs.folder import RunFolder
from trainbook.runs.manifest import Manifest
from trainbook.runs.table import TableRows, as_rows

Origin = Literal["trainbook", "fit", "watch", "huggingface", "tensorboard", "wandb", "csv"]
HUGGING_FACE = "Hugging Face trainer"
Row = dict[str, Any]
Knowledge = Literal["known", "unknown", "does not apply"]

# Knobs without effect, by optimizer.
NOT_OF_OPTIMIZER = {
    "sgd": ("optimizer.beta1", "optimizer.beta2", "optimizer.epsilon"),
    "lion": ("optimizer.momentum", "optimizer.epsilon"),
    **dict.fromkeys(("adamw", "stable_adamw", "adamw_8bit", "paged_adamw_8bit"), ("optimizer.momentum",)),
}
# Facts of a model's structure, and the knob that means nothing where the model has no such part.
PARTS = {"has_dropout": "model.dropout", "has_attention": "model.num_attention_heads"}
OWN_STEP = re.compile(r"step (\d[\d,]*): ")
ENOUGH_TARGETS = 64  # to say how often each class occurs, or how far numbers vary


@dataclass(frozen=True)
class RunRecord:
    """Rows use the names of `runs.METRICS` and are ordered by step; rows of abandoned segments are left out."""

    name: str
    train: Sequence[Row]
    evaluations: Sequence[Row]
    events: list[Row] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)  # by knob path: those that are known
    config: Config | None = None  # of a run that a configuration describes whole: not of `fit`, nor of other tools
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the manifest, and the events `start` and `facts`
    origin: Origin = "trainbook"
    names: Mapping[str, str] = field(default_factory=dict)  # what the tool that wrote it calls a knob, by knob path
    path: Path | None = None
    notices: tuple[str, ...] = ()  # what of its files could not be read
    overrides: tuple[str, ...] = ()  # of a configuration that nothing was run of: what was asked for over its file

    def __post_init__(self) -> None:
        """Rows of other tools come as lists."""
        object.__setattr__(self, "train", as_rows(self.train))
        object.__setattr__(self, "evaluations", as_rows(self.evaluations))

    def knowledge_of(self, path: str) -> Knowledge:
        """Of a knob: that `settings` has its value, which may be None (no clipping); that nobody wrote it down; or that
        the run has nothing of the kind (the momentum of Adam, the dropout of a model without any)."""
        optimizer = self.settings.get("optimizer.type")
        is_absent = any(path == knob and self.facts.get(fact) is False for fact, knob in PARTS.items())
        if is_absent or path in NOT_OF_OPTIMIZER.get(str(optimizer), ()):
            return "does not apply"
        if self.origin == "fit" and not applies_to_fit(path):
            return "does not apply"
        return "known" if path in self.settings else "unknown"

    def has(self, *metrics: str) -> bool:
        """Whether training rows have all of these."""
        return all(self.rows("train").has(metric) for metric in metrics)

    def rows(self, split: str) -> TableRows:
        """The same, as columns too."""
        return as_rows(self.train if split == "train" else self.evaluations)

    def series(self, metric: str, split: str = "train") -> tuple[list[int], list[float]]:
        """Steps and values, where there is one."""
        steps, values = self.rows(split).series(metric)
        return steps.astype(int).tolist(), values.tolist()


def read_run(folder: RunFolder) -> RunRecord:
    """A Trainbook run, finished or not, from the files that exist."""
    config, facts = _config_and_manifest(folder)
    told = told_by(config, facts.get("recipe"))
    events = folder.events()
    is_watched = facts.get("recipe") == WATCH
    for event in events:
        if event["kind"] in ("start", "facts") or (is_watched and event["kind"] == "resume"):
            facts |= {name: value for name, value in event.items() if name not in ("kind", "step", "segment", "time")}
    names: Mapping[str, str] = {}
    if is_watched:
        facts.pop("config_problem", None)  # it has no configuration of ours
        told, names = _told_by_watch(facts)
    if told.origin != "trainbook":
        facts = {**_of_guessing(facts), **facts}
    metrics = folder.metrics()
    return RunRecord(
        name=folder.name,
        train=metrics.with_text("split", "train"),
        evaluations=metrics.with_text("split", "eval"),
        events=events,
        settings=told.settings,
        config=told.config,
        facts=facts,
        origin=told.origin,
        names=names,
        path=folder.path,
        notices=tuple(folder.notices()),
    )


def _of_guessing(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What guessing without the input costs, from the loss function and the targets of the first batches."""
    found: dict[str, Any] = {}
    if not facts.get("loss_is_mean", True) or int(facts.get("targets_seen") or 0) < ENOUGH_TARGETS:
        return found
    if uniform := facts.get("guessing_loss"):
        found["uniform_loss"] = uniform
        if facts.get("target_entropy") is not None:
            found["prior_loss"] = facts["target_entropy"]
    elif facts.get("objective") == "squared error" and facts.get("target_variance") is not None:
        found["prior_loss"] = facts["target_variance"]
    return found


class RunSettings(NamedTuple):
    origin: Origin
    settings: dict[str, Any]
    config: Config | None


def told_by(config: Config | None, recipe: str | None) -> RunSettings:
    """What a configuration says of a run. Of a module that was given to `fit` it says nothing: knobs of model and data
    are then at defaults that describe nobody's."""
    origin: Origin = "fit" if recipe == FIT else "trainbook"
    if config is None:
        return RunSettings(origin, {}, None)
    settings = {knob.path: config.get(knob.path) for knob in declarations()}
    if origin == "trainbook":
        return RunSettings(origin, settings, config)
    return RunSettings(origin, {path: value for path, value in settings.items() if applies_to_fit(path)}, None)


def _told_by_watch(facts: dict[str, Any]) -> tuple[RunSettings, Mapping[str, str]]:
    """Settings are in the events, by knob path, with what the loop's own trainer calls them. One that a later version
    knows, or somebody wrote by hand, is left out."""
    known = {knob.path for knob in declarations()}
    given = [facts.pop(name, None) for name in ("settings", "names")]
    mappings = [each if isinstance(each, dict) else {} for each in given]
    settings, names = ({path: value for path, value in each.items() if path in known} for each in mappings)
    origin: Origin = "huggingface" if facts.get("tool") == HUGGING_FACE else "watch"
    return RunSettings(origin, settings, None), {path: str(name) for path, name in names.items()}


def step_and_rest(reason: str) -> tuple[int | None, str]:
    """Of a reason that begins with a step of its own, as the guard gives it: the step, and what follows."""
    found = OWN_STEP.match(reason)
    return (int(found[1].replace(",", "")), reason[found.end() :]) if found else (None, reason)


def counted(facts: Mapping[str, Any]) -> str:
    """What a run's `tokens` and `tokens_per_second` count: of a module that was given to `fit`, what its data is in."""
    return str(facts.get("counted") or ("batches" if facts.get("recipe") == FIT else "tokens"))


def _config_and_manifest(folder: RunFolder) -> tuple[Config | None, dict[str, Any]]:
    """Of a run killed early either may be missing; of an earlier version the configuration may not be one today."""
    from trainbook.knobs.loading import load

    try:
        manifest = folder.read_manifest()
    except NewerRun:
        raise
    except UserError:
        manifest = None
    facts: dict[str, Any] = {}
    if manifest is not None:
        facts = {item.name: getattr(manifest, item.name) for item in fields(Manifest) if item.name != "config"}
    try:
        if manifest is not None and manifest.config:
            return folder.recorded(), facts
        return load(folder.config).config, facts
    except UserError as error:
        return None, facts | {"config_problem": str(error)}
