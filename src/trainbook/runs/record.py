"""A record: what is known about a run, whichever tool wrote it. The doctor and compare read records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainbook.contained import must_stay_inside
from trainbook.errors import NewerRun, RunFolderError, UserError
from trainbook.knobs.config import Config, declarations
from trainbook.knobs.own_module import FIT, applies_to_fit
from trainbook.runs.folder import RunFolder, list_runs
from trainbook.runs.manifest import Manifest
from trainbook.runs.table import Rows, as_rows

Origin = Literal["trainbook", "fit", "huggingface", "tensorboard", "wandb", "csv"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Record:
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

    def has(self, *metrics: str) -> bool:
        """Whether training rows have all of these."""
        return all(self.rows("train").has(metric) for metric in metrics)

    def rows(self, split: str) -> Rows:
        """The same, as columns too."""
        return as_rows(self.train if split == "train" else self.evaluations)

    def series(self, metric: str, split: str = "train") -> tuple[list[int], list[float]]:
        """Steps and values, where there is one."""
        steps, values = self.rows(split).series(metric)
        return steps.astype(int).tolist(), values.tolist()


def open_record(path: Path | str, runs_dir: Path | str | None = None) -> Record:
    """The run at `path`, ours or another tool's, or our own of that name in `runs_dir`."""
    from trainbook.runs.foreign import LOOKED_FOR, read_foreign

    wanted = Path(path).expanduser()
    places = [wanted] if runs_dir is None else [wanted, Path(runs_dir).expanduser() / wanted]
    try:
        for place in places:
            if (folder := _our_folder(place)) is not None:
                return read_run(folder)
        for place in places:
            if place.exists() and (record := read_foreign(place)) is not None:
                return record
    except OSError as error:
        raise RunFolderError(f"{error.filename or wanted} cannot be read: {error.strerror or error}.") from None
    raise RunFolderError(f"{_what_is_there(places)} Looked for {LOOKED_FOR}.{_nearest(places)}")


def read_run(folder: RunFolder) -> Record:
    """A Trainbook run, finished or not, from the files that exist."""
    config, facts = _config_and_manifest(folder)
    told = told_by(config, facts.get("recipe"))
    events = folder.events()
    for event in events:
        if event["kind"] in ("start", "facts"):
            facts |= {name: value for name, value in event.items() if name not in ("kind", "step", "segment", "time")}
    metrics = folder.metrics()
    return Record(
        name=folder.name,
        train=metrics.with_text("split", "train"),
        evaluations=metrics.with_text("split", "eval"),
        events=events,
        settings=told.settings,
        config=told.config,
        facts=facts,
        origin=told.origin,
        path=folder.path,
        notices=tuple(folder.notices()),
    )


class Told(NamedTuple):
    origin: Origin
    settings: dict[str, Any]
    config: Config | None


def told_by(config: Config | None, recipe: str | None) -> Told:
    """What a configuration says of a run. Of a module that was given to `fit` it says nothing: knobs of model and data
    are then at defaults that describe nobody's."""
    origin: Origin = "fit" if recipe == FIT else "trainbook"
    if config is None:
        return Told(origin, {}, None)
    settings = {knob.path: config.get(knob.path) for knob in declarations()}
    if origin == "trainbook":
        return Told(origin, settings, config)
    return Told(origin, {path: value for path, value in settings.items() if applies_to_fit(path)}, None)


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


def _our_folder(place: Path) -> RunFolder | None:
    """Also when one of its files is named, and also before its manifest is written."""
    if place.name in ("manifest.json", "metrics.jsonl", "events.jsonl") and place.is_file():
        place = place.parent
    folder = RunFolder(place)
    has_begun = folder.config.is_file() and folder.metrics_file.is_file()
    if not (folder.manifest.is_file() or folder.has_checkpoints or has_begun):
        return None
    must_stay_inside(place)
    return folder


def _what_is_there(places: list[Path]) -> str:
    for place in places:
        if place.is_dir():
            return f"{place} holds no readable run."
        if place.exists():
            return f"{place} is not a readable run."
    return f"there is no run {' or '.join(str(place) for place in places)}."


def _nearest(places: list[Path]) -> str:
    """By name among the runs beside it. A bare name is one of the folder of runs, a longer path is a place."""
    wanted = places[0] if len(places[0].parts) > 1 else places[-1]
    known = [run.name for run in list_runs(wanted.parent)]
    longer = [name for name in known if name.startswith(wanted.name)]
    near = longer[:1] or get_close_matches(wanted.name, known, n=1, cutoff=0.5)
    return f" Did you mean {wanted.parent / near[0]}?" if near else ""
