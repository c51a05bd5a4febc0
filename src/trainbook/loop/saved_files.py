"""Lost or damaged files of a run: restored if a checkpoint holds a copy, and reported in any case."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.bounded.files import open_bytes, read_text
from trainbook.checkpoints import CheckpointStore, LoadedCheckpoint
from trainbook.checkpoints.catalogue import step_name, write_index
from trainbook.contained import must_stay_inside
from trainbook.data.samples.quarantine import write_entries
from trainbook.errors import CheckpointError, NewerRun, RunFolderError
from trainbook.knobs import Loaded, difference, dump, dump_changes
from trainbook.knobs.aliases import by_path
from trainbook.knobs.origin import DEFAULT, Origin
from trainbook.knobs.recipes import as_config
from trainbook.runs import Manifest, RunFolder, jsonl, write_text_atomically
from trainbook.runs.jsonl import Extent
from trainbook.terminal import echo
from trainbook.tracking import FileTracker, Trackers

PART = "run"  # of a checkpoint
OR_ELSE = "restore it, or start a new run under another --name"


@dataclass(frozen=True)
class SavedFiles:
    """What a checkpoint holds of its run's other files."""

    step: int
    config_text: str
    manifest: Manifest
    rows: dict[str, Extent]
    quarantined: list[dict[str, Any]]
    base_step: int | None  # of the earlier run's checkpoint that this one began with

    @classmethod
    def of(cls, found: LoadedCheckpoint, run: RunFolder) -> SavedFiles | None:
        held = found.state.get(PART)
        if held is None:  # saved before checkpoints held it
            return None
        rows = {name: Extent(**extent) for name, extent in held["rows"].items()}
        manifest = Manifest.of(held["manifest"], run.manifest)
        return cls(found.step, held["config"], manifest, rows, found.state["healing"]["entries"], held["base_step"])


@dataclass(frozen=True)
class Recovery:
    config_text: str | None = None  # what config.yaml should hold; None: it does
    lines: list[str] = field(default_factory=list)  # what to tell the user
    kept: SavedFiles | None = None


def record(
    config_text: str, manifest: Manifest, extents: Mapping[str, Extent], base_step: int | None
) -> dict[str, Any]:
    """What each checkpoint keeps of the run's other files: copies of some, and the extent of those that grow."""
    rows = {name: asdict(extent) for name, extent in extents.items()}
    return {"config": config_text, "manifest": asdict(manifest), "rows": rows, "base_step": base_step}


def recover(run: RunFolder) -> Recovery:
    """Find what is missing of manifest.json and config.yaml. Nothing is written here: resuming the run does that.

    A restored manifest is used in place of the file.
    """
    must_stay_inside(run.path)
    kept = newest_kept(run)
    manifest, lines = _manifest(run, kept)
    if manifest is None:
        return Recovery()  # no run has begun here
    text, about_config = _config(run, manifest, kept)
    return Recovery(text, [*lines, *about_config], kept)


def put_back(run: RunFolder, recovery: Recovery, quiet: bool) -> None:
    """Restore the files of a finished run, and report what cannot be restored."""
    told = {event.get("reason") for event in run.events(raw=True)}
    lost_for_good = [line for line in lost_rows(run, recovery.kept) if line not in told]
    quarantine = lost_quarantine(run, recovery.kept)
    lines = [*recovery.lines, *quarantine, *lost_for_good]
    if not lines:
        return
    with run.lock():
        if recovery.config_text is not None:
            write_text_atomically(run.config, recovery.config_text)
        if quarantine and recovery.kept is not None:
            write_entries(run.quarantine_file, recovery.kept.quarantined)
        step = run.metrics("train").last_step
        with Trackers(FileTracker(run), segment=run.next_segment() - 1, start_step=step) as trackers:
            for line in lines:
                trackers.log_event("notice", reason=line)
    if not quiet:
        with suppress(BrokenPipeError):
            echo("\n".join(lines))


def lost_rows(run: RunFolder, kept: SavedFiles | None) -> list[str]:
    """A sentence for each file that has lost or changed rows since the checkpoint was saved."""
    if kept is None:
        return []
    lines = []
    for name, extent in kept.rows.items():
        if lost := jsonl.lost_since(run.path / name, extent):
            lines.append(f"{name} {lost} when step {kept.step} was saved. Lost rows cannot be restored")
    return lines


def base_file(run: RunFolder) -> Path:
    """The file that records which checkpoint of an earlier run the weights come from."""
    return run.network / "base.json"


def base_step_of(run: RunFolder) -> int | None:
    try:
        return int(json_text.read(base_file(run))["step"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def lost_base(run: RunFolder, kept: SavedFiles | None) -> list[str]:
    if kept is None or kept.base_step is None or base_step_of(run) is not None:
        return []
    file = base_file(run)
    return [f"{file.relative_to(run.path)} {_harm(file) or 'was damaged'}: restored from {step_name(kept.step)}"]


def lost_quarantine(run: RunFolder, kept: SavedFiles | None) -> list[str]:
    """A checkpoint holds all quarantine entries from before it was saved; loading it restores them."""
    if kept is None or not kept.quarantined or jsonl.has_rows(run.quarantine_file):
        return []
    harm = _harm(run.quarantine_file) or "was damaged"
    return [f"{run.quarantine_file.name} {harm}: restored from {step_name(kept.step)}"]


def newest_kept(run: RunFolder) -> SavedFiles | None:
    store = CheckpointStore(run.checkpoints, read_only=True, on_event=lambda kind, facts: None)  # told by whoever loads
    try:
        found = store.load("latest", parts=(PART, "healing"))
    except CheckpointError:  # damaged every one, or from before checkpoints held it
        return None
    return None if found is None else SavedFiles.of(found, run)


def _manifest(run: RunFolder, kept: SavedFiles | None) -> tuple[Manifest | None, Sequence[str]]:
    if not run.manifest.exists() and not run.has_checkpoints:
        return None, ()
    try:
        manifest = Manifest.read(run.manifest)
    except NewerRun:
        raise
    except RunFolderError as error:
        return _stand_in(run, kept, error)
    try:
        as_config(manifest.config, run.manifest)
    except RunFolderError as error:
        if kept is not None and kept.manifest.versions.get("trainbook") != manifest.versions.get("trainbook"):
            raise  # not damaged, but of another version
        return _stand_in(run, kept, error)
    return manifest, ()


def _stand_in(run: RunFolder, kept: SavedFiles | None, error: RunFolderError) -> tuple[Manifest, Sequence[str]]:
    if kept is None:
        raise _beyond_help(run, error) from None
    run.stand_in = kept.manifest
    harm = _harm(run.manifest) or "was damaged"
    return kept.manifest, (f"{run.manifest.name} {harm}: restored from {step_name(kept.step)}, as saved then",)


def _beyond_help(run: RunFolder, error: RunFolderError) -> RunFolderError:
    if not run.manifest.exists():
        return RunFolderError(f"{run.path} holds checkpoints, but its manifest.json is missing: {OR_ELSE}")
    return RunFolderError(f"{str(error).rstrip('.')}. No checkpoint holds a copy: {OR_ELSE}.")


def _config(run: RunFolder, manifest: Manifest, kept: SavedFiles | None) -> tuple[str | None, Sequence[str]]:
    harm = _harm(run.config, kept.config_text if kept else None)
    if not harm:
        return None, ()
    if not manifest.config:
        raise RunFolderError(f"{run.config} {harm}, and manifest.json has no copy of the configuration: {OR_ELSE}.")
    # The manifest has every value; the checkpoint's copy, which may be older, knows where they came from.
    config, unset = as_config(manifest.config, run.manifest), as_config({}, run.manifest)
    told = Origin("file", run.manifest.name)
    origins = {path: DEFAULT if config.get(path) == unset.get(path) else told for path in by_path()}
    loaded = Loaded(config, origins)
    if kept is None:
        return dump(loaded), (f"{run.config.name} {harm}: rewritten from {run.manifest.name}",)
    text = dump_changes(kept.config_text, loaded, difference(as_config(kept.manifest.config, run.manifest), config))
    return text, (f"{run.config.name} {harm}: restored from {step_name(kept.step)}",)


def _harm(path: Path, wanted: str | None = None) -> str:
    """What is wrong with a text file; empty if it may be as somebody meant it."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        return "was missing"
    except UnicodeDecodeError:
        return "was not valid text"
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}.") from None
    if not text.strip("\0 \n"):
        return "was empty"
    if wanted is not None and text != wanted and wanted.startswith(text):
        return "was truncated"
    return ""


# A new run that starts at another run's checkpoint, with its history.


def newest_whole(run: RunFolder, at_most: int) -> int | None:
    """The step of the newest undamaged checkpoint up to `at_most`."""
    store = CheckpointStore(run.checkpoints, read_only=True, on_event=lambda kind, facts: None)
    for step in sorted((step for step in store.steps() if 0 < step <= at_most), reverse=True):
        try:
            found = store.load(step)
        except CheckpointError:  # damaged, or removed by the run itself since it was listed
            continue
        if found is not None and SavedFiles.of(found, run) is not None:
            return step
    return None


def fork(parent: RunFolder, step: int, child: RunFolder) -> None:
    """Make `child` a copy of `parent` as of this step: a run that was stopped there, and can be resumed.

    The parent is only read. The manifest is written last: a child without one is incomplete, and is copied again.
    """
    if child.has_begun:
        raise RunFolderError(f"{child.path} already holds a run.")
    found = CheckpointStore(parent.checkpoints, read_only=True).load(step, parts=(PART, "healing"))
    kept = SavedFiles.of(found, parent) if found is not None else None
    if found is None or kept is None:
        raise CheckpointError(f"{parent.path} has no usable checkpoint of step {step} to start a new run from.")
    shutil.rmtree(child.path, ignore_errors=True)
    child.checkpoints.mkdir(parents=True)
    shutil.copytree(found.path, child.checkpoints / step_name(step))
    write_index(child.checkpoints)
    for folder, copy in ((parent.tokenizer, child.tokenizer), (parent.network, child.network)):
        if folder.is_dir():
            shutil.copytree(folder, copy)
    for name, extent in kept.rows.items():  # they are only appended to: what they held then is their beginning
        if (parent.path / name).is_file():
            with open_bytes(parent.path / name) as rows:
                (child.path / name).write_bytes(rows.read(extent.bytes))
    write_text_atomically(child.config, kept.config_text)
    manifest = replace(kept.manifest, name=child.name, parent_run=str(parent.path))
    manifest.end_segment("interrupted", f"a copy of {parent.name} at step {step}")
    child.write_manifest(manifest)
