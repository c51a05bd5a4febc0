"""Damage of every kind to every file is seen."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import json
import shutil

import pytest
import torch

from trainbook.checkpoints import CheckpointStore
from trainbook.errors import CheckpointError

FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "complete.json"]


@pytest.fixture
def store(tmp_path, state_of, on_event):
    store = CheckpointStore(tmp_path, on_event=on_event)
    for step in (1, 2):
        store.save(step, state_of(step), metrics={"loss": 1.0 / step})
    return store


@pytest.fixture
def newest(tmp_path):
    return tmp_path / "step-00000002"


@pytest.fixture
def must_be_passed_over(store, newest, events, state_of, assert_same):
    def check(words=""):
        events.clear()
        loaded = store.load()
        assert loaded is not None and loaded.step == 1
        assert_same(loaded.state, state_of(1))
        assert [(kind, facts["path"]) for kind, facts in events] == [("checkpoint_damaged", str(newest))]
        assert words in events[0][1]["reason"]
        with pytest.raises(CheckpointError) as raised:
            store.load(2)
        assert str(newest) in str(raised.value) and words in str(raised.value)

    return check


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_seen(name, store, newest, must_be_passed_over):
    path = newest / name
    whole = path.read_bytes()
    offsets = {0, 7, 8, len(whole) // 4, len(whole) // 2, len(whole) - 1, *range(5, len(whole), 41)}
    for number, offset in enumerate(sorted(offsets)):
        changed = bytearray(whole)
        changed[offset] ^= 1 << number % 8
        path.write_bytes(changed)
        must_be_passed_over(name)
    path.write_bytes(whole)
    assert store.load().step == 2


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_grown_file_is_seen(name, store, newest, must_be_passed_over):
    path = newest / name
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:-1], whole + b" ", bytes(len(whole))):
        path.write_bytes(content)
        must_be_passed_over(name)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_seen(name, newest, store, must_be_passed_over):
    (newest / name).unlink()
    must_be_passed_over(f"{name} is missing")
    assert store.steps() == [1]


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 1}', b"[" * 100_000])
def test_a_marker_of_another_form_is_seen(content, newest, must_be_passed_over):
    (newest / "complete.json").write_bytes(content)
    must_be_passed_over("complete.json")


def test_a_marker_that_vouches_for_other_bytes_needs_its_own_hash(newest, must_be_passed_over):
    marker = json.loads((newest / "complete.json").read_text())
    marker["files"]["model.safetensors"]["sha256"] = "0" * 64
    (newest / "complete.json").write_text(json.dumps(marker, indent=1))
    must_be_passed_over("complete.json has changed")


def test_a_later_format_is_named(newest, must_be_passed_over):
    path = newest / "complete.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 3'))
    must_be_passed_over("format 3, but this version reads formats 1 and 2")


def test_a_folder_renamed_to_another_step_is_not_believed(store, newest, events, tmp_path):
    shutil.copytree(newest, tmp_path / "step-00000009")
    assert store.steps() == [1, 2]
    assert store.load().step == 2
    with pytest.raises(CheckpointError, match="holds step 2, which does not match its name"):
        store.load(9)


def test_a_file_in_the_place_of_a_folder_is_seen(newest, must_be_passed_over):
    shutil.rmtree(newest)
    newest.write_text("not a folder")
    must_be_passed_over("not a folder")


def test_an_empty_folder_is_seen(newest, must_be_passed_over):
    shutil.rmtree(newest)
    newest.mkdir()
    must_be_passed_over("complete.json is missing")


def test_reading_the_model_alone_neither_opens_nor_needs_the_optimizer(store, newest, state_of, assert_same, events):
    (newest / "optimizer.safetensors").unlink()
    events.clear()
    loaded = store.load(parts=("model", "loop"))
    assert loaded.step == 2 and not events
    assert_same(loaded.state, {name: state_of(2)[name] for name in ("model", "loop")})


def test_reading_the_model_alone_verifies_it(store, newest, events):
    changed = bytearray((newest / "model.safetensors").read_bytes())
    changed[-1] ^= 1
    (newest / "model.safetensors").write_bytes(changed)
    assert store.load(parts=["model"]).step == 1
    assert events[-1][1]["reason"].startswith("model.safetensors has changed")
    assert store.load(parts=["optimizer"]).step == 2


def test_a_part_that_was_never_saved_is_an_error_with_the_names_there_are(store, events):
    events.clear()
    with pytest.raises(CheckpointError, match=r"no part 'modle'; it has: model, optimizer, loop"):
        store.load(parts=["modle"])
    assert not events


def test_loaded_tensors_do_not_hang_on_the_file(store, newest):
    loaded = store.load()
    path = newest / "model.safetensors"
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert torch.equal(loaded.state["model"]["weight"], torch.full((4, 3), 2.0))
    loaded.state["model"]["weight"].zero_()


def test_metrics_come_back_exactly(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, {}, metrics={"loss": 0.1, "perplexity": float("inf")})
    loaded = store.load()
    assert loaded.state == {} and loaded.metrics == {"loss": 0.1, "perplexity": float("inf")}
