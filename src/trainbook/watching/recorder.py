"""The run folder of a watched training: manifest, metrics.jsonl and events.jsonl, as `trainbook train` writes them."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainbook.doctor import diagnose
from trainbook.errors import RunFolderError
from trainbook.finding import holding
from trainbook.loop.live_doctor import SPOKEN, as_event
from trainbook.runs import Manifest, RunFolder, default_name
from trainbook.runs.manifest import Status
from trainbook.runs.run_record import WATCH, read_run
from trainbook.runs.schema import Split
from trainbook.tracking import FileTracker, Trackers, silent


class Recorder:
    """Of several processes the first one writes."""

    def __init__(self, name: str | None, runs_dir: str | Path, *, start_step: int, device: torch.device) -> None:
        self.run: RunFolder | None = None
        self._held = ExitStack()
        self._manifest: Manifest | None = None
        self._is_judged = False
        if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
            self.trackers = silent(0, start_step)
            return
        run, segment = _opened(name or default_name(WATCH, runs_dir), runs_dir)
        self._held.enter_context(run.lock())
        gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
        fresh = Manifest.of_this_machine(run.name, recipe=WATCH, command=sys.argv, gpus=gpus)
        manifest = run.read_manifest() if run.has_begun else fresh
        if run.has_begun:
            manifest.continue_with(fresh)
        manifest.start_segment(segment, start_step)
        self.run, self._manifest = run, manifest
        self.trackers = Trackers(FileTracker(run), segment=segment, start_step=start_step)
        run.write_manifest(manifest)

    def event(self, kind: str, step: int, **fields: Any) -> None:
        self.trackers.log_event(kind, step, **fields)

    def row(self, step: int, split: Split, values: Mapping[str, Any]) -> None:
        self.trackers.log_metrics(step, split, values)

    def judge(self, step: int, status: Status) -> None:
        """Write down what the doctor says of the whole run, in place of what an earlier part was told."""
        if self.run is None:
            return
        record = read_run(self.run)
        record = replace(record, facts={**record.facts, "status": status})
        found = {each.cause: each for each in diagnose(record).findings if each.severity in SPOKEN}
        found = {cause: each for cause, each in found.items() if not each.explained_by}
        for cause, severity in holding(record.events).items():
            if cause not in found:
                reason = f"This {severity} no longer holds."
                self.event("withdrawn", step, reason=reason, cause_id=cause, severity=severity)
        for each in found.values():
            self.event("finding", step, **as_event(record, each))
        self._is_judged = True

    def end(self, kind: str, step: int, reason: str) -> None:
        """The last event, which also says whether there is a verdict."""
        self.event(kind, step, reason=reason, **({"is_judged": True} if self._is_judged else {}))

    def close(self, status: Status, detail: str = "") -> None:
        self.trackers.close(status)
        if self.run is not None and self._manifest is not None:
            self._manifest.end_segment(status, detail)
            self.run.write_manifest(self._manifest)
        self._held.close()


def _opened(name: str, runs_dir: str | Path) -> tuple[RunFolder, int]:
    """A new folder, or that of an earlier part of the same training, and the number of this part."""
    earlier = RunFolder(Path(runs_dir) / unicodedata.normalize("NFC", name))
    if not earlier.has_begun:
        return RunFolder.create(runs_dir, name), 0
    if earlier.read_manifest().recipe != WATCH:
        raise RunFolderError(f"{earlier.path} holds a run that Trainbook trained: choose another name.")
    return earlier, earlier.next_segment()
