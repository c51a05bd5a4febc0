"""The store of a run's checkpoints: saving, finding, verifying, keeping."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import torch

from trainbook.checkpoints import catalogue, failures
from trainbook.checkpoints.encoding import EncodedPart, encode_state, snapshot_parts
from trainbook.checkpoints.folder import Damaged, Marker, NewCheckpoint, plain_words
from trainbook.checkpoints.reading import Contents, ReadSpec, read_state, verified
from trainbook.errors import CheckpointError, NoSuchStep
from trainbook.parallel.ranks import ALONE, Ranks

if TYPE_CHECKING:  # slow to import, and needed only by ranks that write together
    from trainbook.checkpoints.sliced import SlicedCheckpoint

LOOKS = 3  # how often the folder is listed when a writer removes or replaces what is being read
Found = TypeVar("Found")
New: TypeAlias = "NewCheckpoint | SlicedCheckpoint"


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

    With `ranks`, each of them has a store of the same folder, and they save and load together: a checkpoint is written,
    or found damaged, for all of them or for none. Their group must be one that nothing else is exchanged over, since a
    save goes on beside the training. The first rank alone writes, but for slices (`Slice`) of tensors, which each rank
    writes itself; and it alone tells events, but for damage.
    """

    def __init__(
        self,
        folder: Path,
        *,
        save_total_limit: int | None = None,
        asynchronous: bool = False,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
        read_only: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        if save_total_limit is not None and save_total_limit < 1:
            raise ValueError(f"save_total_limit must be None or >= 1, but got {save_total_limit}")
        self.folder = Path(folder)
        self.save_total_limit = save_total_limit
        self.read_only = read_only
        self.ranks = ranks
        self._on_event = on_event or failures.warn
        self._closed = False
        self._in_flight: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint") if asynchronous and not read_only else None
        if not read_only and ranks.is_first:
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
        new = self._checkpoint(step, parts, numbers.tree)
        if isinstance(new, NewCheckpoint):
            if not self.ranks.is_first:
                return
            self._refuse_if_too_large(new)
        if self._thread is None:
            self._write(new, is_best)
        else:
            held = self._checkpoint(step, snapshot_parts(parts), numbers.tree)
            self._in_flight = self._thread.submit(self._write, held, is_best)

    def _checkpoint(self, step: int, parts: Mapping[str, EncodedPart], metrics: Any) -> New:
        if any(part.slices for part in parts.values()):
            from trainbook.checkpoints.sliced import SlicedCheckpoint

            return SlicedCheckpoint(step, parts, metrics, self.ranks.is_first)
        return NewCheckpoint(step, parts, metrics)

    def mark_best(self, step: int) -> None:
        """Names a saved checkpoint the best one: rotation spares it from then on, and the former best no longer."""
        self._must_be_writable()
        self.wait()
        entries = catalogue.scan(self.folder)
        entry = next((e for e in catalogue.complete(entries) if e.step == step), None)
        if entry is None:
            absent = failures.absent(self.folder, step, entries)
            raise CheckpointError(f"Step {step} cannot be marked as the best: {absent}")
        try:
            catalogue.mark_best(entry, entries)
        except OSError as error:
            told = f"{entry.path} could not be marked as the best: {plain_words(error)}."
            raise CheckpointError(f"{told} {failures.last_complete(self.folder)}") from error
        self._upkeep(rotate=False)

    def load(
        self,
        which: Literal["latest", "best"] | int = "latest",
        *,
        parts: Sequence[str] | None = None,
        unread: Sequence[str] = (),
        device: torch.device | str = "cpu",
    ) -> LoadedCheckpoint | None:
        """The state as it was saved, verified file by file; None when there is nothing to load.

        `latest` is the one written last; a damaged one is named in an event and the next older one taken. `best` and an
        explicit step are that checkpoint or an error. `parts` names the parts wanted: the files of others are not read.
        The tensors of `unread` parts are not read either until each is asked for: they come as `Unread`.
        A save in flight is waited for; what it raised is left for the next save, wait or close.
        """
        if isinstance(which, str) and which not in ("latest", "best"):
            raise ValueError(f"which must be 'latest', 'best' or a step, but got {which!r}")
        if self._in_flight is not None:
            wait_for([self._in_flight])
        wanted = ReadSpec(parts, unread, device, self.ranks.rank, self.ranks.world)
        damaged: dict[Path, str] = {}
        for _ in range(LOOKS):
            for entry in self._as_first(lambda: self._wanted(which, catalogue.scan(self.folder))):
                try:
                    return self._read(entry, wanted)
                except Damaged as error:
                    if self._has_changed(entry):
                        break
                    if entry.path not in damaged:
                        damaged[entry.path] = str(error)
                        facts = {"step": entry.step, "path": str(entry.path), "reason": str(error)}
                        self._on_event("checkpoint_damaged", facts)
            else:
                if damaged:
                    raise CheckpointError(failures.all_damaged(which, damaged))
                return None
        raise CheckpointError(f"The checkpoints in {self.folder} are replaced faster than they can be read.")

    def _read(self, entry: catalogue.CheckpointEntry, wanted: ReadSpec) -> LoadedCheckpoint:
        def verify() -> Contents:
            if entry.marker is None or entry.marker.step != entry.step:
                raise Damaged(entry.damage)
            return verified(entry.path, entry.marker, wanted)

        contents = self._agreed(verify)
        state, metrics = self._agreed(lambda: read_state(entry.path, contents, wanted))
        if self._has_changed(entry):
            raise Damaged("it was replaced while it was read")
        return LoadedCheckpoint(entry.step, state, entry.path, metrics)

    def _has_changed(self, entry: catalogue.CheckpointEntry) -> bool:
        return self.ranks.broadcast(self.ranks.is_first and catalogue.has_changed(entry))

    def _agreed(self, work: Callable[[], Found]) -> Found:
        """What this rank finds, if none of them finds damage."""
        found, damage = None, ""
        try:
            found = work()
        except Damaged as error:
            damage = str(error)
        for rank, seen in enumerate(self.ranks.gather(damage)):
            if seen:
                raise Damaged(f"rank {rank} reports that {seen}" if rank else seen)
        return cast(Found, found)

    def _as_first(self, find: Callable[[], Found]) -> Found:
        """What the first rank finds, or its error, on all of them."""
        told: tuple[Found | None, CheckpointError | None] = None, None
        if self.ranks.is_first:
            try:
                told = find(), None
            except CheckpointError as error:
                told = None, error
        found, error = self.ranks.broadcast(told)
        if error is not None:
            raise error
        return cast(Found, found)

    def steps(self) -> list[int]:
        """The steps that are complete by their marker and file sizes; content is verified when it is loaded."""
        return sorted(entry.step for entry in catalogue.complete(catalogue.scan(self.folder)))

    def best(self) -> Path | None:
        """The folder of the checkpoint that is marked as the best."""
        found = catalogue.best_of(catalogue.complete(catalogue.scan(self.folder)))
        return found.path if found is not None else None

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

    def _write(self, new: New, is_best: bool) -> None:
        started = time.monotonic()
        addition = catalogue.Addition(self.folder, new.step, is_best=is_best)
        try:
            if isinstance(new, NewCheckpoint):
                marker = catalogue.add(addition, new)
            else:
                marker = self._write_together(new, addition)
        except OSError as error:
            raise failures.not_written(self.folder, new, error) from error
        if marker is None:
            return
        facts = {"step": new.step, "path": str(addition.path), "bytes": marker.size, "best": is_best}
        removed = self._upkeep(rotate=True)
        self._on_event("checkpoint", {**facts, "seconds": time.monotonic() - started, "removed": removed})

    def _write_together(self, new: SlicedCheckpoint, addition: catalogue.Addition) -> Marker | None:
        from torch.distributed.checkpoint import CheckpointException

        from trainbook.checkpoints.sliced import write_together

        try:
            return write_together(new, addition, self.ranks, lambda: self._refuse_if_too_large(new))
        except CheckpointException as error:
            rank, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
            told = failures.not_written(self.folder, new, cause, rank)
            raise CheckpointError(self.ranks.broadcast(str(told))) from error  # all are here, and say the same

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

    def _wanted(self, which: str | int, entries: list[catalogue.CheckpointEntry]) -> list[catalogue.CheckpointEntry]:
        if which == "latest":
            return entries
        if which == "best":
            best = catalogue.best_of(entries)
            return [best] if best else []
        wanted = [entry for entry in entries if entry.step == which]
        if not wanted:
            raise NoSuchStep(f"Step {which} cannot be loaded: {failures.absent(self.folder, int(which), entries)}")
        return wanted

    def _refuse_if_too_large(self, new: New) -> None:
        failures.refuse_if_too_large(self.folder, new)

    def _must_be_writable(self) -> None:
        if self.read_only:
            raise CheckpointError(f"The checkpoint folder {self.folder} was opened read-only.")
        if self._closed:
            raise CheckpointError(f"The checkpoint folder {self.folder} is closed: nothing more can be saved.")


def damage_of_newest(folder: Path) -> str:
    """What is wrong with the checkpoint that was written last, every file read; "" if nothing is, or there is none."""
    for entry in catalogue.scan(folder)[:1]:
        if entry.marker is None or entry.marker.step != entry.step:
            return entry.damage
        try:
            verified(entry.path, entry.marker, ReadSpec())
        except Damaged as error:
            return str(error)
    return ""
