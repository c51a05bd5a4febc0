"""A run that begins at another run's checkpoint."""

from __future__ import annotations

import pytest

from trainbook import api
from trainbook.errors import CheckpointError, RunFolderError
from trainbook.loop.saved_files import fork, newest_whole
from trainbook.runs import RunFolder

SAVING = ("checkpoint.save_steps=3", "checkpoint.save_total_limit=null", "model.dropout=0.1", "logging.logging_steps=1")


@pytest.fixture
def whole(lab):
    lab.train(*SAVING, name="whole")
    return lab


def contents(run: RunFolder) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_a_fork_goes_on_as_the_parent_did_bit_for_bit_and_leaves_it_alone(whole):
    parent = whole.open("whole")
    before = contents(parent)
    fork(parent, 6, whole.open("copy"))
    assert max(row["step"] for row in whole.open("copy").metrics(raw=True)) == 6, "it has no future yet"
    assert not whole.events("finish", "copy")
    api.resume(whole.open("copy").path, quiet=True)
    whole.must_be_equal("whole", "copy")
    manifest = whole.open("copy").read_manifest()
    assert (manifest.name, manifest.parent_run, manifest.status) == ("copy", str(parent.path), "finished")
    assert not whole.events("notice", "copy"), "nothing was lost, so nothing is told to be"
    assert contents(parent) == before


def test_a_fork_that_was_killed_half_way_is_made_anew_and_a_run_is_never_overwritten(whole):
    parent, child = whole.open("whole"), whole.open("half")
    fork(parent, 6, child)
    child.manifest.unlink()
    (child.checkpoints / "step-00000006" / "state.json").unlink()
    fork(parent, 9, child)
    assert whole.steps_saved("half") == [9]
    with pytest.raises(RunFolderError, match="already holds a run"):
        fork(parent, 6, child)
    with pytest.raises(CheckpointError):
        fork(parent, 5, whole.open("no such step"))


def test_the_newest_whole_checkpoint_is_one_that_can_be_read(whole):
    run = whole.open("whole")
    assert [newest_whole(run, at_most) for at_most in (2, 3, 8, 9, 100)] == [None, 3, 6, 9, 12]
    file = next((run.checkpoints / "step-00000009").glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert newest_whole(run, 10) == 6
