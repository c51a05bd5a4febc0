"""The store of a run's checkpoints: saving, finding, verifying, keeping."""

from __future__ import annotations

import errno
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from trainbook.checkpoints import catalogue
from trainbook.checkpoints.encoding import encode_state, snapshot_parts
from trainbook.checkpoints.files import free_bytes, human_bytes, is_full_disk, plain_words
from trainbook.checkpoints.folder import Damaged, NewCheckpoint, read_state
from trainbook.errors import CheckpointError

LOOKS = 3  # how often the folder is listed when a writer removes or replaces what is being read


@dataclass(frozen=True)
class LoadedCheckpoint:
    step: int
    state: dict[str, Any]
    path: Path
    metrics: dict[str, float]


class CheckpointStore:
    """The checkpoints in `folder`, for one writer or any number of readers.

    `on_event(kind, facts)` hears of

    - `checkpoint`: one is complete and on the disk (step, path, bytes, seconds, best, removed);
    - `checkpoint_damaged`: one was passed over or refused (step, path, reason);
    - `checkpoint_upkeep_failed`: one is complete, but the index could not be written or an old one not removed
      (path, reason).

    With `asynchronous`, `checkpoint` and `checkpoint_upkeep_failed` come from the writing thread, never two calls at a
    time; the callback must not call the store. Without `on_event`, what is wrong becomes a Python warning.

    `read_only` changes nothing on the disk, not even leftovers of a writer that died.
    """

    def __init__(
        self,
        folder: Path,
        *,
        save_total_limit: int | None = None,
        asynchronous: bool = False,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
        read_only: bool = False,
    ) -> None:
        if save_total_limit is not None and save_total_limit < 1:
            raise ValueError(f"save_total_limit must be None or >= 1, but got {save_total_limit}")
        self.folder = Path(folder)
        self.save_total_limit = save_total_limit
        self.read_only = read_only
        self._on_event = on_event or _warn
        self._closed = False
        self._in_flight: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint") if asynchronous and not read_only else None
        if not read_only:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                catalogue.clear_leftovers(self.folder)
                catalogue.write_index(self.folder)
            except OSError as error:
                raise CheckpointError(
                    f"The checkpoint folder {self.folder} cannot be opened for writing: {plain_words(error)}."
                ) from error

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        is_best: bool = False,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Saves the state under its step; a checkpoint of the same step is replaced once the new one is complete.

        A replaced best checkpoint stays marked as the best. With `asynchronous`, returns when the tensors are copied to
        host memory; a save still in flight is waited for, and what it raised is raised here, before anything is copied.
        """
        self._must_be_writable()
        if step < 0:
            raise ValueError(f"step must be >= 0, but got {step}")
        self.wait()
        parts = encode_state(state)
        numbers = encode_state({"metrics": {name: float(value) for name, value in (metrics or {}).items()}})["metrics"]
        new = NewCheckpoint(step, parts, numbers.tree)
        self._refuse_if_too_large(new)
        if self._thread is None:
            self._write(new, is_best)
        else:
            held = NewCheckpoint(step, snapshot_parts(parts), numbers.tree)
            self._in_flight = self._thread.submit(self._write, held, is_best)

    def mark_best(self, step: int) -> None:
        """Names a saved checkpoint the best one: rotation spares it from then on, and the former best no longer."""
        self._must_be_writable()
        self.wait()
        entries = catalogue.scan(self.folder)
        entry = next((e for e in catalogue.complete(entries) if e.step == step), None)
        if entry is None:
            raise CheckpointError(f"Step {step} cannot be marked as the best: {self._absent(step, entries)}")
        try:
            catalogue.mark_best(entry, entries)
        except OSError as error:
            raise CheckpointError(
                f"{entry.path} could not be marked as the best: {plain_words(error)}. {self._last_complete()}"
            ) from error
        self._upkeep(rotate=False)

    def load(
        self,
        which: Literal["latest", "best"] | int = "latest",
        *,
        parts: Sequence[str] | None = None,
        device: torch.device | str = "cpu",
    ) -> LoadedCheckpoint | None:
        """The state as it was saved, verified file by file; None when there is nothing to load.

        `latest` is the one written last; a damaged one is named in an event and the next older one taken. `best` and an
        explicit step are that checkpoint or an error. `parts` names the parts wanted: the files of others are not read.
        A save in flight is waited for; what it raised is left for the next save, wait or close.
        """
        if isinstance(which, str) and which not in ("latest", "best"):
            raise ValueError(f"which must be 'latest', 'best' or a step, but got {which!r}")
        if self._in_flight is not None:
            wait_for([self._in_flight])
        damaged: dict[Path, str] = {}
        for _ in range(LOOKS):
            entries = catalogue.scan(self.folder)
            for entry in self._wanted(which, entries):
                try:
                    if entry.marker is None or entry.marker.step != entry.step:
                        raise Damaged(entry.damage)
                    state, metrics = read_state(entry.path, entry.marker, parts, device)
                    return LoadedCheckpoint(entry.step, state, entry.path, metrics)
                except Damaged as error:
                    if catalogue.has_changed(entry):
                        break
                    if entry.path not in damaged:
                        damaged[entry.path] = str(error)
                        facts = {"step": entry.step, "path": str(entry.path), "reason": str(error)}
                        self._on_event("checkpoint_damaged", facts)
            else:
                if damaged:
                    raise CheckpointError(_all_damaged(which, damaged))
                return None
        raise CheckpointError(f"The checkpoints in {self.folder} change faster than they can be read.")

    def steps(self) -> list[int]:
        """The steps that are complete by their marker and file sizes; content is verified when it is loaded."""
        return sorted(entry.step for entry in catalogue.complete(catalogue.scan(self.folder)))

    def wait(self) -> None:
        """Returns when no save is in flight; raises what the last one raised."""
        if self._in_flight is not None:
            wait_for([self._in_flight])
            finished, self._in_flight = self._in_flight, None
            finished.result()

    def close(self) -> None:
        """Waits; no save can follow."""
        self._closed = True
        try:
            self.wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown()

    def _write(self, new: NewCheckpoint, is_best: bool) -> None:
        started = time.monotonic()
        try:
            path, marker = catalogue.add(self.folder, new, is_best=is_best)
        except OSError as error:
            if is_full_disk(error):
                raise self._disk_full(new, plain_words(error)) from error
            raise self._not_written(new, plain_words(error)) from error
        removed = self._upkeep(rotate=True)
        self._on_event(
            "checkpoint",
            {
                "step": new.step,
                "path": str(path),
                "bytes": marker.size,
                "seconds": time.monotonic() - started,
                "best": is_best,
                "removed": removed,
            },
        )

    def _upkeep(self, *, rotate: bool) -> list[int]:
        """What follows a checkpoint that is already safe: its failure is told, and tried again at the next save."""
        removed: list[int] = []
        try:
            catalogue.write_index(self.folder)
            catalogue.clear_leftovers(self.folder)
            catalogue.drop_old_marks(self.folder)
            if rotate:
                removed = catalogue.rotate(self.folder, self.save_total_limit)
                catalogue.write_index(self.folder)
        except OSError as error:
            self._on_event("checkpoint_upkeep_failed", {"path": str(self.folder), "reason": plain_words(error)})
        return removed

    def _wanted(self, which: str | int, entries: list[catalogue.Entry]) -> list[catalogue.Entry]:
        if which == "latest":
            return entries
        if which == "best":
            best = catalogue.best_of(entries)
            return [best] if best else []
        wanted = [entry for entry in entries if entry.step == which]
        if not wanted:
            raise CheckpointError(f"Step {which} cannot be loaded: {self._absent(int(which), entries)}")
        return wanted

    def _absent(self, step: int, entries: list[catalogue.Entry]) -> str:
        damaged = next((entry for entry in entries if entry.step == step), None)
        if damaged is not None:
            return f"{damaged.path} is damaged: {damaged.damage}."
        steps = ", ".join(str(entry.step) for entry in sorted(entries, key=lambda e: e.step)) or "no checkpoints"
        return f"{self.folder} has no checkpoint of this step; it has {steps}."

    def _must_be_writable(self) -> None:
        if self.read_only:
            raise CheckpointError(f"The checkpoint folder {self.folder} was opened for reading only.")
        if self._closed:
            raise CheckpointError(f"The checkpoint folder {self.folder} was closed; nothing can be saved any more.")

    def _refuse_if_too_large(self, new: NewCheckpoint) -> None:
        try:
            free = free_bytes(self.folder)
        except OSError as error:
            raise self._not_written(new, plain_words(error)) from error
        if free is not None and free < new.bytes_needed:
            raise self._disk_full(new, plain_words(OSError(errno.ENOSPC, "nothing was written")))

    def _disk_full(self, new: NewCheckpoint, cause: str) -> CheckpointError:
        try:
            free = free_bytes(self.folder)
        except OSError:
            free = None
        room = "an unknown amount is" if free is None else f"{human_bytes(free)} are"
        return self._not_written(new, f"{cause}: it needs {human_bytes(new.bytes_needed)} and {room} free")

    def _not_written(self, new: NewCheckpoint, cause: str) -> CheckpointError:
        path = self.folder / catalogue.step_name(new.step)
        return CheckpointError(
            f"The checkpoint of step {new.step} could not be written to {path}: {cause}. {self._last_complete()}"
        )

    def _last_complete(self) -> str:
        whole = catalogue.complete(catalogue.scan(self.folder))
        if not whole:
            return f"There is no complete checkpoint in {self.folder}."
        return f"The last complete checkpoint is step {whole[0].step} at {whole[0].path}."


def _all_damaged(which: str | int, damaged: Mapping[Path, str]) -> str:
    listed = "\n".join(f"  {path}: {reason}" for path, reason in damaged.items())
    if which == "latest":
        return f"No checkpoint can be loaded; every one is damaged:\n{listed}"
    return f"The checkpoint asked for ({which}) is damaged:\n{listed}"


def _warn(kind: str, facts: dict[str, Any]) -> None:
    if kind == "checkpoint_damaged":
        warnings.warn(f"The checkpoint {facts['path']} is damaged and not used: {facts['reason']}", stacklevel=3)
    elif kind == "checkpoint_upkeep_failed":
        warnings.warn(f"The checkpoints in {facts['path']} could not be tidied: {facts['reason']}", stacklevel=3)
