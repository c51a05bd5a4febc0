"""A new run that starts at another run's checkpoint, with its history."""

from __future__ import annotations

import shutil
from dataclasses import replace

from trainbook.bounded.files import open_bytes
from trainbook.checkpoints import CheckpointStore
from trainbook.checkpoints.catalogue import step_name, write_index
from trainbook.errors import CheckpointError, RunFolderError
from trainbook.loop.saved_files import PART, SavedFiles
from trainbook.runs import RunFolder, write_text_atomically


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
