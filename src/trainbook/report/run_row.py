"""The row of a run in a list of runs: what is known of it, as plain values. The command line and the board show it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeGuard

from trainbook.errors import RunFolderError, UserError
from trainbook.finding import Severity, holding
from trainbook.knobs.config import Config
from trainbook.knobs.derive import task_name
from trainbook.knobs.own_module import FIT, WATCH, applies_to_fit
from trainbook.knobs.recipes import as_config
from trainbook.report.row_digest import RowDigest
from trainbook.report.seed_groups import SEED, group_of
from trainbook.runs import RunFolder, disk, jsonl
from trainbook.runs.digest import up_to
from trainbook.runs.labels import read_labels
from trainbook.runs.manifest import Manifest
from trainbook.runs.schema import METRICS, PLACING_METRICS, SEGMENT_STARTS, judgements
from trainbook.runs.skipped import made_up_for

if TYPE_CHECKING:
    from trainbook.runs.run_record import RunRecord  # with NumPy, which a list of our own runs need not wait for

PLACING = (*SEGMENT_STARTS, "checkpoint", "interrupt", "finish", "failure", "early_stop")
GUARD_ACTIONS = ("skip", "corruption", "rollback", "products", "remedy", "oom")

Row = dict[str, Any]


def run_row(folder: RunFolder, *, with_spark: bool = False) -> Row:
    """RunFolderError: the manifest cannot be read."""
    return RunRow(folder, with_spark=with_spark).row()


class RunRow:
    """The row of one run, kept up to date: only what its files have gained is read again."""

    def __init__(self, folder: RunFolder, *, with_spark: bool = False) -> None:
        self.folder = folder
        self._digest = RowDigest(folder.metrics_file, with_losses=with_spark)
        self._with_spark = with_spark
        self._stamps: tuple[Any, Any] = (None, None)
        self._told: Row = {}  # by the manifest
        self._events: list[Row] = []
        self._num_damaged = 0  # lines of the events

    def row(self) -> Row:
        folder = self.folder
        self._digest.update()
        stamps = _stamp(folder.manifest), _stamp(folder.events_file)
        if stamps != self._stamps:
            self._events, damaged = jsonl.scan(folder.events_file, _broken_law)
            self._num_damaged = len(damaged)
            self._told = _told_by(folder.read_manifest(), self._events, folder)
            self._stamps = stamps
        labels = read_labels(folder.path)
        row = {"name": folder.name, "path": str(folder.path), **self._told}
        row |= {"tags": list(labels.labels.tags), "note": labels.labels.note, "archived": labels.labels.archived}
        row["status"] = _status(row["status"], folder)
        digest = self._digest
        evaluations = up_to(digest.evaluations, [e for e in self._events if e["kind"] in SEGMENT_STARTS])
        row |= _numbers(list(digest.newest), evaluations, row.pop("chosen"))
        row["status"] = "diverged" if row["status"] == "finished" and _is_lost(row["loss"]) else row["status"]
        row["step"] = max(row["step"], last_saved_step(self._events))
        row["metric_note"] = _metric_note(row, was_evaluated=bool(digest.evaluations))
        row |= _progress(row, list(digest.newest), self._first_row())
        if self._with_spark:
            row["spark"], row["spark_steps"] = digest.losses.values(), digest.losses.steps()
        lost = None if digest.exists else lost_metrics(folder, row["status"], self._events)
        row["is_lost"] = lost is not None
        row["findings"] = None if row["is_lost"] and not any((row["findings"] or {}).values()) else row["findings"]
        row["notices"] = [*(told for told in (labels.notice, lost) if told), *self._damaged()]
        return row

    def _first_row(self) -> Row | None:
        """Of training, since the run was started or resumed last."""
        began = [event.get("segment", 0) for event in self._events if event["kind"] in ("start", "resume")]
        found = [row for segment, row in self._digest.firsts.items() if segment >= max(began, default=0)]
        return found[0] if found else None

    def _damaged(self) -> list[str]:
        folder = self.folder
        counts = ((folder.metrics_file, self._digest.num_damaged), (folder.events_file, self._num_damaged))
        return [f"{path}: {count:,} unreadable line{'s' * (count != 1)}" for path, count in counts if count]


def record_row(record: RunRecord) -> Row:
    """Of a run that another tool wrote."""
    train, evaluations = record.rows("train"), record.rows("eval")
    newest = train[-20:] if train else []
    settings = dict(record.settings)
    total = record.facts.get("total_updates") or settings.get("training.max_steps")
    row = {
        "name": record.name,
        "path": str(record.path) if record.path is not None else None,
        "origin": record.origin,
        "status": str(record.facts.get("status") or record.facts.get("tool") or record.origin),
        "recipe": None,
        "task": None,
        "parameters": _whole(record.facts.get("num_parameters")),
        "seed": _whole(settings.get(SEED)),
        "max_steps": _whole(total),
        "settings": settings,
        "faults": [],
        "group": group_of(record.origin, settings, _whole(settings.get(SEED))),
        "findings": None,
        "guard": sum(event["kind"] in GUARD_ACTIONS for event in record.events),
        "started": _moment(train[0].get("time") if train else None),
        "updated": _moment(train[-1].get("time") if train else None),
        "tags": [],
        "note": "",
        "archived": False,
        "notices": list(record.notices),
    }
    chosen = str(settings.get("evaluation.metric_for_best_model") or "loss")
    row |= _numbers(newest, list(evaluations[-2000:]), chosen)
    row["metric_note"] = _metric_note(row, was_evaluated=len(evaluations) > 0)
    return row | {"progress": None, "seconds_left": None, "total_steps": row["max_steps"]}


# From the manifest and the events


def _told_by(manifest: Manifest, events: Sequence[Row], folder: RunFolder) -> Row:
    facts: Row = {}
    for event in events:
        if event["kind"] in ("start", "resume", "facts"):
            facts |= event
    origin = {FIT: "fit", WATCH: "watch"}.get(str(manifest.recipe), "trainbook")
    settings = facts.get("settings") if manifest.recipe == WATCH else changed_settings(manifest.config, origin)
    settings = settings if isinstance(settings, dict) else {}
    config = _config(manifest, folder) if origin == "trainbook" else None
    length = manifest.config.get("training")
    total = facts.get("total_updates") or (length.get("max_steps") if isinstance(length, dict) else None)
    chosen = manifest.config.get("evaluation")
    chosen = chosen.get("metric_for_best_model") if isinstance(chosen, dict) else None
    return {
        "origin": origin,
        "status": manifest.status,
        "recipe": manifest.recipe,
        "task": None if config is None else task_name(config),
        "parameters": _whole(facts.get("num_parameters")),
        "seed": manifest.seed,
        "max_steps": _whole(total),
        "settings": settings,
        "faults": list(manifest.injected_faults),
        "group": group_of(origin, settings, manifest.seed, manifest.injected_faults),
        "findings": _recorded_findings(manifest, events, any(event.get("is_judged") is True for event in events)),
        "guard": sum(event["kind"] in GUARD_ACTIONS for event in events),
        "started": manifest.created or None,
        "updated": manifest.updated or None,
        "chosen": chosen if isinstance(chosen, str) else "loss",
    }


def changed_settings(config: Mapping[str, Any], origin: str = "trainbook") -> Row:
    """Of a manifest's configuration, what differs from the defaults, by knob path; unknown knobs are left out."""
    found = {}
    for section, knobs in _defaults().items():
        given = config.get(section)
        given = given if isinstance(given, dict) else {}
        for name, default in knobs.items():
            path = f"{section}.{name}"
            if given.get(name, default) != default and (origin != "fit" or applies_to_fit(path)):
                found[path] = given[name]
    return found


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    return Config().model_dump(mode="json")


def _recorded_findings(manifest: Manifest, events: Sequence[Row], is_judged: bool) -> dict[Severity, int] | None:
    """None: no verdict is recorded. A run of ours that finishes has been judged to its end; one that was watched says
    whether it was."""
    is_ours = manifest.recipe != WATCH
    is_judged = is_judged or (is_ours and manifest.status == "finished")
    is_judged = is_judged or any(event["kind"] in ("finding", "withdrawn") for event in events)
    return count_findings(events) if is_judged else None


def count_findings(events: Sequence[Row]) -> dict[Severity, int]:
    """What the doctor said during the run and still holds, each cause once."""
    severities = list(holding(events).values())
    return {"error": severities.count("error"), "warning": severities.count("warning")}


def _config(manifest: Manifest, folder: RunFolder) -> Config | None:
    try:
        return as_config(manifest.config, folder.manifest)
    except (RunFolderError, UserError, ValueError):
        return None


def _status(said: str, folder: RunFolder) -> str:
    """A run that says `running` without a process that could be it is abandoned."""
    if said != "running":
        return said
    holder = disk.read_holder(folder.lock_file)
    return "abandoned" if holder is None or holder.is_known_dead else said


def _is_lost(loss: Any) -> bool:
    return _is_number(loss) and not math.isfinite(loss)


def _broken_law(row: Row) -> str:
    is_whole = all(type(row.get(name, 0)) is int for name in ("step", "segment"))
    return "" if "step" in row and isinstance(row.get("kind"), str) and is_whole else "must have a step and a kind"


def _stamp(path: Any) -> tuple[int, int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


# From the metrics


def _numbers(newest: Sequence[Row], evaluations: Sequence[Row], chosen: str) -> Row:
    last = newest[-1] if newest else {}
    judged = evaluations[-1] if evaluations else {}
    metrics = _metrics_in(last) | {f"eval_{name}": value for name, value in _metrics_in(judged).items()}
    times = [row["time"] for row in (last, judged) if _is_number(row.get("time")) and row["time"] > 1e8]
    row = {
        "step": max((row["step"] for row in (last, judged) if row), default=0),
        "loss": metrics.get("loss"),
        "eval_loss": metrics.get("eval_loss"),
        "learning_rate": metrics.get("learning_rate"),
        "tokens_per_second": metrics.get("tokens_per_second"),
        "metric": _best(evaluations, chosen),
        "metrics": metrics,
    }
    return row | ({"updated": _moment(max(times))} if times else {})


def _metrics_in(row: Row) -> Row:
    return {name: value for name, value in row.items() if _is_number(value) and name not in PLACING_METRICS}


def _best(evaluations: Sequence[Row], chosen: str) -> Row | None:
    """The best evaluation by the chosen metric, or by the loss."""
    marked = [row for row in evaluations if row.get("best") is True]
    finite = [row for row in evaluations if _is_number(row.get("loss")) and math.isfinite(row["loss"])]
    if not marked and not finite:
        return None
    best = marked[-1] if marked else min(finite, key=lambda row: row["loss"])
    known = {metric.name: (metric, value) for metric, value in judgements(best)}
    name = chosen if chosen in known else "loss"
    if name not in known:
        return None
    return {
        "name": name,
        "value": known[name][1],
        "step": best["step"],
        "greater_is_better": METRICS[name].higher_is_better is True,
    }


def _metric_note(row: Row, *, was_evaluated: bool) -> str:
    """Why there is no best metric; empty where there is one. A low training loss may be a lucky batch."""
    if row["metric"] is not None:
        return ""
    if row["eval_loss"] is not None:
        return "no finite evaluation"
    if was_evaluated:
        return "all evaluations were rolled back"
    return "no evaluation yet" if row["status"] == "running" else "no evaluation"


def lost_metrics(folder: RunFolder, status: str, events: Sequence[Row]) -> str | None:
    """Of a run that has made steps, and whose metrics are gone."""
    has_begun = status == "finished" or any(event["step"] > 0 for event in events)
    if not has_begun or folder.metrics_file.exists():
        return None
    return f"{folder.metrics_file} is missing: what this run logged is lost, and it cannot be judged"


def last_saved_step(events: Sequence[Row]) -> int:
    """Where the newest part of a run began, was saved or ended; rows are logged every few steps only."""
    newest = max((event.get("segment", 0) for event in events), default=0)
    return max((e["step"] for e in events if e.get("segment", 0) == newest and e["kind"] in PLACING), default=0)


def _progress(row: Row, newest: Sequence[Row], first: Row | None) -> Row:
    """By the updates that were applied, which the length of a run counts: each that is skipped is a step more, of a
    run that goes on. One that has ended is shown with the length that was planned."""
    total, last = row["max_steps"], newest[-1] if newest else {}
    if not total:
        return {"progress": None, "seconds_left": None, "total_steps": None}
    skipped, goes_on = made_up_for(last, row["origin"]), row["status"] == "running"
    applied = row["step"] - skipped
    seconds = _seconds_per_step(newest, first) if goes_on else None
    left = seconds * max(0, total + skipped - last.get("step", 0)) if seconds is not None else None
    return {
        "total_steps": total + skipped if goes_on else max(total, min(row["step"], total + skipped)),
        "progress": min(1.0, max(0.0, applied / total)),
        "seconds_left": left if left is not None and math.isfinite(left) else None,
    }


def _seconds_per_step(newest: Sequence[Row], first: Row | None) -> float | None:
    """By the clock since the first row, as the terminal estimates: evaluations and checkpoints are part of it."""
    last = newest[-1] if newest else {}
    if first is not None and _is_number(first.get("time")) and _is_number(last.get("time")):
        steps, seconds = last["step"] - first["step"], last["time"] - first["time"]
        if steps > 0 and seconds > 0:
            return seconds / steps
    known = [each["step_seconds"] for each in newest if _is_number(each.get("step_seconds"))]
    return fmean(known) if known else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: Any) -> int | None:
    return int(value) if _is_number(value) and math.isfinite(value) and value >= 0 else None


def _moment(seconds: Any) -> str | None:
    """ISO 8601, in UTC; None of what is no time since 1970."""
    try:
        known = _is_number(seconds) and seconds > 1e8
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if known else None
    except (OverflowError, ValueError, OSError):
        return None
