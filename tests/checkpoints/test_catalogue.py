"""Which checkpoints are kept, which is newest and best, and what a dead writer leaves behind."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from trainbook.checkpoints import CheckpointStore, catalogue
from trainbook.errors import CheckpointError


def index_of(folder):
    return json.loads((folder / "index.json").read_text())


@pytest.fixture
def saved(tmp_path, state_of, on_event):
    def go(*steps, best=(), limit=None):
        store = CheckpointStore(tmp_path, save_total_limit=limit, on_event=on_event)
        for step in steps:
            store.save(step, state_of(step), is_best=step in best)
        return store

    return go


def everything(folder):
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.stat().st_ino,
            path.is_file() and path.read_bytes(),
        )
        for path in [folder, *folder.rglob("*")]
    }


def test_the_newest_are_kept(saved):
    assert saved(1, 2, 3, 4, 5, limit=2).steps() == [4, 5]


def test_all_are_kept_without_a_limit(saved):
    assert saved(1, 2, 3).steps() == [1, 2, 3]


def test_the_best_is_kept_beside_the_newest(saved, tmp_path):
    store = saved(1, 2, 3, 4, 5, best=[2], limit=2)
    assert store.steps() == [2, 4, 5]
    assert index_of(tmp_path) == {"latest": 5, "best": 2, "steps": [2, 4, 5]}
    assert store.load("best").step == 2


def test_a_former_best_goes_when_there_is_a_better_one(saved):
    assert saved(1, 2, 3, 4, 5, best=[1, 3], limit=1).steps() == [3, 5]


def test_the_event_names_what_was_removed(saved, events):
    saved(1, 2, 3, limit=1, best=[3])
    assert [facts["removed"] for _, facts in events] == [[], [1], [2]]
    assert [facts["best"] for _, facts in events] == [False, False, True]
    assert all(
        facts["bytes"] > 0 and facts["seconds"] >= 0 and os.path.isdir(facts["path"]) for _, facts in events[-1:]
    )


def test_marking_later_spares_from_rotation(saved, state_of, tmp_path):
    store = saved(1, 2, limit=2)
    store.mark_best(1)
    assert index_of(tmp_path)["best"] == 1
    store.mark_best(1)
    for step in (3, 4):
        store.save(step, state_of(step))
    assert store.steps() == [1, 3, 4]
    store.mark_best(4)
    store.save(5, state_of(5))
    assert store.steps() == [4, 5]


def test_only_a_complete_checkpoint_can_be_the_best(saved, tmp_path):
    store = saved(1, 2)
    (tmp_path / "step-00000002" / "complete.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000002 is damaged: complete\.json is missing"):
        store.mark_best(2)
    with pytest.raises(CheckpointError, match="no checkpoint of this step; it has 1, 2"):
        store.mark_best(7)


def test_best_and_latest_survive_the_loss_of_the_index(saved, tmp_path):
    saved(1, 2, 3, best=[2])
    for content in (None, "{", '{"latest": 1, "best": 1}'):
        (tmp_path / "index.json").unlink()
        if content is not None:
            (tmp_path / "index.json").write_text(content)
        reader = CheckpointStore(tmp_path, read_only=True)
        assert (reader.load("latest").step, reader.load("best").step) == (3, 2)
        CheckpointStore(tmp_path)
        assert index_of(tmp_path) == {"latest": 3, "best": 2, "steps": [1, 2, 3]}


def test_a_damaged_best_is_an_error_not_another_checkpoint(saved, tmp_path):
    store = saved(1, 2, 3, best=[2])
    (tmp_path / "step-00000002" / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"\(best\) is damaged(.|\n)*step-00000002"):
        store.load("best")


def test_damaged_ones_are_neither_counted_nor_deleted(saved, state_of, tmp_path):
    store = saved(1, 2, limit=2)
    (tmp_path / "step-00000002" / "complete.json").unlink()
    store.save(3, state_of(3))
    assert store.steps() == [1, 3]
    store.save(4, state_of(4))
    assert store.steps() == [3, 4]
    assert (tmp_path / "step-00000002").exists()


def test_after_going_back_to_an_older_step_its_successors_are_the_newest(saved, state_of, tmp_path):
    store = saved(100, 200, 300)
    assert store.load(100).step == 100
    again = CheckpointStore(tmp_path, save_total_limit=2)
    again.save(150, state_of(150))
    assert again.load().step == 150
    assert again.steps() == [150, 300]
    again.save(160, state_of(160))
    assert again.steps() == [150, 160]


def test_saving_a_step_again_replaces_it(saved, state_of, assert_same, tmp_path):
    store = saved(1, 2)
    store.save(1, state_of(1, 0.5))
    assert store.steps() == [1, 2]
    assert_same(store.load().state, state_of(1, 0.5))
    assert sorted(os.listdir(tmp_path)) == ["index.json", "step-00000001", "step-00000002"]


def test_a_damaged_step_is_replaced_by_a_whole_one(saved, state_of, assert_same, tmp_path):
    store = saved(1, 2)
    shutil.rmtree(tmp_path / "step-00000002")
    (tmp_path / "step-00000002").write_text("a file")
    store.save(2, state_of(2))
    assert_same(store.load().state, state_of(2))


def test_the_best_step_trained_again_stays_the_best(saved, state_of, assert_same):
    store = saved(1, 2, 3, best=[2], limit=1)
    store.save(2, state_of(2, 0.5))
    store.save(4, state_of(4))
    assert store.steps() == [2, 4]
    assert_same(store.load("best").state, state_of(2, 0.5))


def test_of_two_marks_the_later_one_counts(saved, tmp_path):
    store = saved(1, 2, best=[2])
    (tmp_path / "step-00000001" / "best-00000007").touch()
    assert store.load("best").step == 1
    store.mark_best(2)
    assert store.load("best").step == 2
    assert [path.name for path in tmp_path.glob("*/best-*")] == ["best-00000008"]


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_leftovers_of_a_dead_writer_are_removed_by_the_next_one(saved, tmp_path):
    saved(1)
    pid = dead_process()
    for name in (f".writing-step-00000002-{pid}", f".deleting-step-00000000-{pid}", f".replaced-step-00000001-{pid}"):
        shutil.copytree(tmp_path / "step-00000001", tmp_path / name)
    (tmp_path / f".writing-index.json-{os.getpid()}").write_text("{")
    assert CheckpointStore(tmp_path).steps() == [1]
    assert sorted(os.listdir(tmp_path)) == ["index.json", "step-00000001"]


def test_a_replaced_checkpoint_whose_successor_never_came_is_used_and_put_back(saved, tmp_path, state_of, assert_same):
    saved(1)
    (tmp_path / "step-00000001").rename(tmp_path / f".replaced-step-00000001-{dead_process()}")
    before = everything(tmp_path)
    reader = CheckpointStore(tmp_path, read_only=True)
    assert reader.steps() == [1]
    assert_same(reader.load().state, state_of(1))
    assert everything(tmp_path) == before
    assert CheckpointStore(tmp_path).load().path == tmp_path / "step-00000001"


def test_a_living_writer_keeps_what_it_is_writing(saved, tmp_path):
    saved(1)
    (tmp_path / f".writing-step-00000002-{os.getppid()}").mkdir()
    CheckpointStore(tmp_path)
    assert (tmp_path / f".writing-step-00000002-{os.getppid()}").is_dir()


def test_leftovers_under_the_same_names_do_not_disturb_a_save(saved, state_of, tmp_path):
    """Process numbers repeat, in containers above all."""
    store = saved(1, 2, limit=1)
    for what, name in (("writing", "3"), ("replaced", "2"), ("deleting", "2")):
        shutil.copytree(tmp_path / "step-00000002", tmp_path / f".{what}-step-0000000{name}-{os.getpid()}")
    store.save(2, state_of(2, 0.5))
    store.save(3, state_of(3))
    assert store.steps() == [3]
    assert sorted(os.listdir(tmp_path)) == ["index.json", "step-00000003"]


def test_read_only_changes_nothing(saved, tmp_path, state_of, on_event):
    saved(1, 2, best=[1])
    for what in ("writing", "deleting"):
        (tmp_path / f".{what}-step-00000003-{dead_process()}").mkdir()
    (tmp_path / "index.json").unlink()
    (tmp_path / "step-00000002" / "complete.json").write_text("{")
    before = everything(tmp_path)
    reader = CheckpointStore(tmp_path, read_only=True, asynchronous=True, save_total_limit=1, on_event=on_event)
    assert (reader.load().step, reader.load("best").step, reader.steps()) == (1, 1, [1])
    for change in (lambda: reader.save(3, state_of(3)), lambda: reader.mark_best(1)):
        with pytest.raises(CheckpointError, match="read-only"):
            change()
    reader.close()
    assert everything(tmp_path) == before


def test_read_only_does_not_make_the_folder(tmp_path):
    reader = CheckpointStore(tmp_path / "absent", read_only=True)
    assert reader.steps() == [] and reader.load() is None and reader.load("best") is None
    assert not (tmp_path / "absent").exists()


def test_other_names_are_left_alone(saved, tmp_path, state_of):
    store = saved(1, limit=1)
    for name in ("step-1", "step-00000001.bak", "step-000000005", "notes", ".hidden", ".writing-by-hand"):
        (tmp_path / name).mkdir()
    CheckpointStore(tmp_path)
    store.save(2, state_of(2))
    assert store.steps() == [2] and len(os.listdir(tmp_path)) == 8


def test_steps_beyond_eight_digits_are_kept_in_order(saved):
    store = saved(99_999_999, 100_000_000, limit=2)
    assert store.steps() == [99_999_999, 100_000_000] and store.load().step == 100_000_000
    assert catalogue.step_name(500) == "step-00000500"
