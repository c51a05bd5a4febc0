# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import namedtuple
from typing import Literal

import pytest
import torch

from trainbook.checkpoints import CheckpointStore, catalogue
from trainbook.checkpoints import store as store_module
from trainbook.errors import CheckpointError


@pytest.fixture
def gate(monkeypatch):
    """Holds every save at its first touch of the disk until it is opened."""
    gate, mkdir = threading.Event(), os.mkdir

    def waiting_mkdir(path, *rest, **named):
        if ".writing-" in str(path):
            assert gate.wait(30)
        mkdir(path, *rest, **named)

    monkeypatch.setattr(os, "mkdir", waiting_mkdir)
    yield gate
    gate.set()


@pytest.fixture
def full_disk(monkeypatch):
    def fill():
        def write(file, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", write)

    return fill


def test_an_empty_folder_has_nothing_to_load(tmp_path):
    store = CheckpointStore(tmp_path / "deep" / "checkpoints")
    assert store.load() is None and store.load("best") is None and store.steps() == []


def test_what_was_saved_is_loaded_with_its_step_path_and_metrics(tmp_path, state_of, assert_same):
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3):
        store.save(step, state_of(step), metrics={"loss": step / 10}, is_best=step == 2)
    wanted: list[tuple[Literal["latest", "best"] | int, int]] = [("latest", 3), ("best", 2), (1, 1)]
    for which, step in wanted:
        loaded = CheckpointStore(tmp_path, read_only=True).load(which)
        assert (loaded.step, loaded.path) == (step, tmp_path / f"step-{step:08d}")
        assert loaded.metrics == {"loss": step / 10}
        assert_same(loaded.state, state_of(step))


def test_every_damaged_one_is_passed_over_until_a_whole_one(tmp_path, state_of, events, on_event):
    store = CheckpointStore(tmp_path, on_event=on_event)
    for step in (1, 2, 3, 4):
        store.save(step, state_of(step))
    for step in (2, 3):
        (tmp_path / f"step-0000000{step}" / "model.safetensors").write_bytes(b"")
    (tmp_path / "step-00000004" / "complete.json").unlink()
    events.clear()
    assert store.load().step == 1
    assert [(kind, facts["step"]) for kind, facts in events] == [("checkpoint_damaged", step) for step in (4, 3, 2)]


def test_when_every_one_is_damaged_the_error_names_them_all(tmp_path, state_of, on_event):
    store = CheckpointStore(tmp_path, on_event=on_event)
    for step in (1, 2):
        store.save(step, state_of(step))
        (tmp_path / f"step-0000000{step}" / "state.json").unlink()
    with pytest.raises(CheckpointError) as raised:
        store.load()
    for step in (1, 2):
        assert f"{tmp_path}/step-0000000{step}: state.json is missing" in str(raised.value)


def test_an_absent_step_is_an_error_with_the_steps_there_are(tmp_path, state_of):
    store = CheckpointStore(tmp_path)
    with pytest.raises(CheckpointError, match="it has no checkpoints"):
        store.load(5)
    store.save(1, state_of(1))
    with pytest.raises(CheckpointError, match=r"Step 5 cannot be loaded.*it has 1"):
        store.load(5)


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="save_total_limit must be None or >= 1, but got 0"):
        CheckpointStore(tmp_path, save_total_limit=0)
    with pytest.raises(ValueError, match="'latest', 'best' or a step, but got 'newest'"):
        CheckpointStore(tmp_path).load("newest")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="step must be >= 0, but got -1"):
        CheckpointStore(tmp_path).save(-1, {})


def test_without_a_listener_damage_becomes_a_warning(tmp_path, state_of):
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        store.save(step, state_of(step))
    (tmp_path / "step-00000002" / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"step-00000002 is damaged and not used: state\.json"):
        assert store.load().step == 1


def test_a_checkpoint_rotated_away_while_it_is_read_is_not_called_damaged(
    tmp_path, state_of, monkeypatch, events, on_event
):
    writer = CheckpointStore(tmp_path, save_total_limit=1)
    writer.save(1, state_of(1))
    reader = CheckpointStore(tmp_path, read_only=True, on_event=on_event)
    read, later = store_module.read_state, iter([2, 3])

    def slow_read(folder, *rest):
        if (step := next(later, None)) is not None:
            writer.save(step, state_of(step))
        return read(folder, *rest)

    monkeypatch.setattr(store_module, "read_state", slow_read)
    assert reader.load().step == 3
    assert not events


def test_a_checkpoint_replaced_while_it_is_read_is_read_again(
    tmp_path, state_of, monkeypatch, events, on_event, assert_same
):
    writer = CheckpointStore(tmp_path)
    writer.save(1, state_of(1))
    reader = CheckpointStore(tmp_path, read_only=True, on_event=on_event)
    read, variants = store_module.read_state, iter([0.5])

    def slow_read(folder, *rest):
        if (variant := next(variants, None)) is not None:
            writer.save(1, state_of(1, variant))
        return read(folder, *rest)

    monkeypatch.setattr(store_module, "read_state", slow_read)
    assert_same(reader.load().state, state_of(1, 0.5))
    assert not events


def test_a_background_save_shows_the_state_of_its_call(tmp_path, gate, assert_same):
    base = torch.arange(12.0).view(3, 4)
    weight = torch.nn.Parameter(torch.ones(4))
    counts = [1, 2]
    store = CheckpointStore(tmp_path, asynchronous=True)
    store.save(1, {"model": {"w": weight, "base": base, "turned": base.t()}, "loop": {"counts": counts}})
    with torch.no_grad():
        weight.fill_(-1)
    base.zero_()
    counts.append(3)
    gate.set()
    store.wait()
    expected = torch.arange(12.0).view(3, 4)
    assert_same(
        store.load().state,
        {"model": {"w": torch.ones(4), "base": expected, "turned": expected.t()}, "loop": {"counts": [1, 2]}},
    )


def test_the_event_of_a_background_save_comes_when_it_is_complete(tmp_path, gate, state_of):
    seen = []
    store = CheckpointStore(
        tmp_path,
        asynchronous=True,
        on_event=lambda kind, facts: seen.append(
            (kind, facts["step"], os.path.exists(facts["path"] + "/complete.json"))
        ),
    )
    store.save(1, state_of(1))
    assert seen == [] and store.steps() == []
    gate.set()
    store.wait()
    assert seen == [("checkpoint", 1, True)]


def test_a_second_save_waits_for_the_first(tmp_path, gate, state_of):
    store = CheckpointStore(tmp_path, asynchronous=True)
    store.save(1, state_of(1))
    second = threading.Thread(target=store.save, args=(2, state_of(2)))
    second.start()
    second.join(0.05)
    assert second.is_alive()
    gate.set()
    second.join()
    store.close()
    assert store.steps() == [1, 2]


def test_loading_and_marking_wait_for_the_save_in_flight(tmp_path, gate, state_of):
    store = CheckpointStore(tmp_path, asynchronous=True)
    store.save(1, state_of(1))
    threading.Timer(0.02, gate.set).start()
    assert store.load().step == 1
    gate.clear()
    store.save(2, state_of(2))
    threading.Timer(0.02, gate.set).start()
    store.mark_best(2)
    assert store.load("best").step == 2


@pytest.mark.parametrize("call", ["wait", "save", "close", "mark_best"])
def test_what_a_background_save_raised_is_raised_once_at_the_next_call(
    tmp_path, state_of, full_disk, monkeypatch, call
):
    store = CheckpointStore(tmp_path, asynchronous=True)
    store.save(1, state_of(1))
    store.wait()
    full_disk()
    store.save(2, state_of(2))
    assert store.load().step == 1, "loading is still possible and does not swallow the error"
    monkeypatch.undo()
    arguments = {"save": (3, state_of(3)), "mark_best": (1,)}.get(call, ())
    with pytest.raises(CheckpointError, match=r"step 2 could not be written.*the disk is full"):
        getattr(store, call)(*arguments)
    if call != "close":
        store.save(4, state_of(4))
        store.wait()
        assert store.steps() == [1, 4]
    store.close()


def test_after_close_nothing_is_saved(tmp_path, state_of):
    for asynchronous in (False, True):
        store = CheckpointStore(tmp_path, asynchronous=asynchronous)
        store.save(1, state_of(1))
        store.close()
        store.close()
        assert store.load().step == 1
        with pytest.raises(CheckpointError, match="closed"):
            store.save(2, state_of(2))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_too_little_space_is_refused_before_anything_is_written(tmp_path, state_of, monkeypatch, asynchronous):
    store = CheckpointStore(tmp_path, asynchronous=asynchronous)
    store.save(1, state_of(1))
    store.wait()
    usage = namedtuple("usage", "total used free")
    state = {"model": {"w": torch.zeros(1_000_000)}}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 3_999_999))
    monkeypatch.setattr(os, "mkdir", lambda *_: pytest.fail("something was written"))
    with pytest.raises(CheckpointError) as raised:
        store.save(2, state)
    message = str(raised.value)
    assert f"{tmp_path}/step-00000002: the disk is full" in message
    assert "needs 4.07 MB" in message and "4.00 MB (3999999 bytes) is free" in message
    assert f"The last complete checkpoint is that of step 1, {tmp_path}/step-00000001." in message
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 0))
    store.save(2, state)
    store.close()
    assert store.steps() == [1, 2], "a file system that does not tell its size is believed to have room"


def test_the_estimate_covers_what_is_written(tmp_path):
    store = CheckpointStore(tmp_path)
    state = {f"part{i}": {str(j): torch.zeros(j) for j in range(50)} for i in range(5)}
    needed = []
    refuse = store._refuse_if_too_large
    store._refuse_if_too_large = lambda new: (needed.append(new.bytes_needed), refuse(new))[1]
    store.save(1, state)
    used = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*"))
    assert 0 < used <= needed[0] < used + 200_000


def test_a_file_in_the_place_of_the_folder_is_said_in_plain_words(tmp_path, state_of):
    (tmp_path / "checkpoints").write_text("")
    for folder in (tmp_path / "checkpoints", tmp_path / "checkpoints" / "deeper"):
        with pytest.raises(CheckpointError, match=f"{folder} cannot be opened for writing"):
            CheckpointStore(folder)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_folder_that_vanished_is_an_error_and_is_not_made_again(tmp_path, state_of, asynchronous):
    folder = tmp_path / "checkpoints"
    store = CheckpointStore(folder, asynchronous=asynchronous)
    store.save(1, state_of(1))
    store.wait()
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match=r"folder does not exist.*There is no complete checkpoint"):
        store.save(2, state_of(2))
    assert not folder.exists()
    folder.write_text("a file")
    with pytest.raises(CheckpointError, match="is a file, not a folder"):
        store.save(2, state_of(2))
        store.wait()
    store.close()


def test_upkeep_that_fails_is_told_and_made_up_for(tmp_path, state_of, monkeypatch, events, on_event):
    store = CheckpointStore(tmp_path, save_total_limit=1, on_event=on_event)
    store.save(1, state_of(1))
    with monkeypatch.context() as patched:
        patched.setattr(catalogue, "rotate", lambda *_: (_ for _ in ()).throw(PermissionError(errno.EACCES, "denied")))
        store.save(2, state_of(2))
    assert [kind for kind, _ in events] == ["checkpoint", "checkpoint_upkeep_failed", "checkpoint"]
    assert "permission denied" in events[1][1]["reason"]
    store.save(3, state_of(3))
    assert store.steps() == [3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_cuda_states_are_saved_as_they_were_and_loaded_where_asked(tmp_path, assert_same, asynchronous):
    store = CheckpointStore(tmp_path, asynchronous=asynchronous)
    weight = torch.randn(2**10, 2**10, device="cuda", dtype=torch.bfloat16)
    expected = {"w": weight.cpu(), "tied": weight.cpu(), "turned": weight.t().cpu(), "step": torch.tensor(3.0)}
    store.save(1, {"model": {"w": weight, "tied": weight, "turned": weight.t(), "step": torch.tensor(3.0)}})
    weight.zero_()
    store.close()
    assert_same(store.load().state["model"], expected)
    on_device = store.load(device="cuda").state["model"]
    assert all(tensor.is_cuda for tensor in on_device.values())
    assert_same(on_device, expected)
    assert on_device["w"].data_ptr() == on_device["tied"].data_ptr()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_adamw_state_goes_on_identically_after_loading(tmp_path, assert_same):
    def build():
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64, device="cuda")
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    def train(model, optimizer, steps):
        for step in steps:
            inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(step)).cuda()
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    straight, resumed = build(), build()
    store = CheckpointStore(tmp_path, asynchronous=True)
    train(*straight, range(3))
    store.save(3, {"model": straight[0].state_dict(), "optimizer": straight[1].state_dict()})
    train(*straight, range(3, 6))
    loaded = store.load(device="cuda")
    resumed[0].load_state_dict(loaded.state["model"])
    resumed[1].load_state_dict(loaded.state["optimizer"])
    train(*resumed, range(3, 6))
    assert_same(dict(straight[0].state_dict()), dict(resumed[0].state_dict()))
    assert_same(straight[1].state_dict(), resumed[1].state_dict())
