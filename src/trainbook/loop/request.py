"""A training as it was asked for, whether its folder allows it, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trainbook.errors import ResumeError
from trainbook.knobs import KnobChange, Loaded, difference, resume_rule
from trainbook.knobs.derive import default_batch
from trainbook.knobs.dumping import DERIVED, origins_in
from trainbook.knobs.origin import Origin
from trainbook.knobs.own_module import FIT
from trainbook.loop.faults.kinds import Fault
from trainbook.runs import RunFolder

Resume = Literal["auto", "never"]
ALREADY_FINISHED = "already finished"

# Knobs that may name a folder or a file, whose contents are looked for again when the run is resumed or used.
FOLDERS = ("model.pretrained", "data.tokenizer", "distributed.deepspeed_config")
GLOBAL_BATCH = "batch.global_batch_size"


@dataclass(frozen=True)
class Result:
    """How a run ended, and its folder."""

    run: RunFolder
    ended: str  # finished | early_stop | already finished

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation row that is best by `evaluation.metric_for_best_model`: `step`, `loss` and other metrics by
        name, beside `split`, `segment` and `time`. None without evaluations, or if none has a finite value."""
        rows = self.run.metrics("eval").with_true("best")
        return self._named(rows[-1]) if rows else None

    @property
    def last(self) -> dict[str, Any] | None:
        """The last training row."""
        rows = self.run.metrics("train")
        return self._named(rows[-1]) if rows else None

    def _named(self, row: dict[str, Any]) -> dict[str, Any]:
        """Of `fit`, what a row calls tokens are samples, batches or targets of the caller's own."""
        from trainbook.runs.run_record import counted

        recipe = self.run.read_manifest().recipe
        if recipe != FIT:
            return row
        start = next((event for event in self.run.events() if event["kind"] == "start"), {})
        unit = counted({"recipe": recipe, **start})
        names = {"tokens": unit, "tokens_per_second": f"{unit}_per_second", "targets": f"evaluated_{unit}"}
        return {names.get(name, name): value for name, value in row.items()}


def _write_nothing(run: RunFolder) -> None:
    pass


@dataclass(frozen=True)
class TrainRequest:
    loaded: Loaded
    recipe: str | None = None
    name: str | None = None
    runs_dir: Path = Path("runs")
    resume: Resume = "auto"
    accept_changes: bool = False
    quiet: bool = False
    faults: Sequence[Fault] = ()  # to put in on purpose
    stop_after: float | None = None  # a fraction of the run
    again: str | None = None  # the advice after an interruption, if it is not to resume this run
    write_report: Callable[[RunFolder], object] = _write_nothing  # of a run that has ended, however it did

    @property
    def is_fit(self) -> bool:
        return self.recipe == FIT

    @property
    def width(self) -> int | None:
        """Of the model, if it is one of ours."""
        return None if self.is_fit else self.loaded.config.model.hidden_size


def check_resume(run: RunFolder, loaded: Loaded, accept_changes: bool) -> list[KnobChange]:
    """The changes of the new configuration; refused if they would silently change the meaning of the run."""
    found = difference(run.recorded(), loaded.config)
    changes = [change for change in found if not (_is_the_same_folder(change) or _is_now_stated(change, loaded))]
    policies = {change.path: resume_rule(change.path).policy for change in changes}
    refused = [
        c for c in changes if policies[c.path] == "fixed" or (policies[c.path] == "schedule" and not accept_changes)
    ]
    if refused:
        lines = [f"{run.path} was started with another configuration:"]
        lines += [f"  {change.path}: {change.old} -> {change.new}" + _why(change.path) for change in changes]
        is_fit = run.read_manifest().recipe == FIT
        accept, name = ("pass accept_changes=True", "name") if is_fit else ("add --accept-changes", "--name")
        can_accept = all(policies[change.path] != "fixed" for change in refused)
        or_accept = f", {accept} to resume with the new ones" if can_accept else ""
        lines.append(f"Use the old values{or_accept}, or start a new run under another {name}.")
        raise ResumeError("\n".join(lines))
    return changes


def with_batch_as_begun(run: RunFolder, loaded: Loaded, config_text: str) -> Loaded:
    """Runs once multiplied the default batch by their number of processes, and did not write the product down. Such a
    run goes on with the batch that it was last trained with, and says so in its config.yaml."""
    default = default_batch(loaded.config)
    start = next((event for event in run.events() if event["kind"] == "start"), None)
    if default is None or start is None or "global_batch" in start:
        return loaded
    recorded = run.recorded()
    processes = run.read_manifest().determinism.get("world", 1)
    if default_batch(recorded) == default and processes > 1:
        return _with_batch(loaded, default * processes, f"{default} x {processes} processes, as this run was begun")
    written = origins_in(config_text, replace(loaded, config=recorded)).get(GLOBAL_BATCH, "")
    if written.startswith(DERIVED) and recorded.batch.global_batch_size is not None:
        return _with_batch(loaded, recorded.batch.global_batch_size, written.removeprefix(DERIVED))
    return loaded


def _with_batch(loaded: Loaded, size: int, reason: str) -> Loaded:
    batch = loaded.config.batch.model_copy(update={"global_batch_size": size})
    config = loaded.config.model_copy(update={"batch": batch})
    return replace(loaded, config=config, origins={**loaded.origins, GLOBAL_BATCH: Origin("derived", reason)})


def _is_the_same_folder(change: KnobChange) -> bool:
    both = (change.old, change.new)
    return change.path in FOLDERS and None not in both and len({_whole(path) for path in both}) == 1


def _is_now_stated(change: KnobChange, loaded: Loaded) -> bool:
    """A batch as `with_batch_as_begun` has it."""
    return change.path == GLOBAL_BATCH and loaded.origins[change.path].kind == "derived"


def _why(path: str) -> str:
    rule = resume_rule(path)
    return "" if rule.policy == "free" else f"   ({rule.why})"


def with_whole_paths(loaded: Loaded) -> Loaded:
    """Absolute paths: a run may be used from another working directory than it was made in."""
    from trainbook.data.tokenizers.files import NAMES

    config = loaded.config
    for path in FOLDERS:
        section, name = path.split(".")
        value = config.get(path)
        if value is not None and value not in NAMES and Path(value).expanduser().exists():
            changed = getattr(config, section).model_copy(update={name: _whole(value)})
            config = config.model_copy(update={section: changed})
    return replace(loaded, config=config)


def _whole(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
