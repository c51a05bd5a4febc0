"""N steps, a stop and N more are the same, bit for bit, as 2N steps."""

from __future__ import annotations

import pytest
import torch
from tests.conftest import slow

from trainbook.errors import CheckpointError

ACCUMULATED = ("model.dropout=0.1", "batch.per_device_train_batch_size=2", "batch.gradient_accumulation_steps=2")
SIZED_IN_EPOCHS = (  # the last batch is short
    "training.num_train_epochs=1.6",
    "batch.global_batch_size=24",
    "batch.per_device_train_batch_size=8",
    "evaluation.eval_strategy=epoch",
    "evaluation.eval_steps=null",
    "schedule.warmup_steps=1",
)
EMBEDDINGS = ("model.embedding_skip=true", "model.value_embeddings=alternate", "optimizer.type=muon")
SPARSE = ("logging.dense_steps=2", "logging.logging_steps=4")


@pytest.mark.parametrize(
    ("samples", "overrides", "stops"),
    [
        pytest.param("windows", (), (5,), id="windows"),
        slow("documents", (), (7,), id="documents"),
        slow("windows", ("fp16=true",), (3, 5, 9), id="fp16, three times"),
        pytest.param("documents", ("fp16=true", "precision.growth_interval=2"), (7,), id="fp16 whose scale grows"),
        slow("windows", ("precision.compute=bf16",), (5,), id="bf16"),
        pytest.param("windows", ("data.num_workers=2",), (5,), id="two data workers"),
        pytest.param("windows", EMBEDDINGS, (5,), id="skips and value embeddings"),
        slow("documents", ("optimizer.type=sgd",), (1, 11), id="sgd, after the first and before the last"),
        pytest.param(
            "windows", ("training.deterministic=true", "checkpoint.asynchronous=true"), (5,), id="asynchronous"
        ),
    ],
)
def test_an_interrupted_run_continues_bit_for_bit(lab, samples, overrides, stops):
    everything = (*ACCUMULATED, *SPARSE, *overrides)
    lab.train(*everything, name="whole", samples=samples)
    for stop in stops:
        with lab.interrupted_at(stop):
            lab.train(*everything, name="cut", samples=samples)
        assert lab.state("cut")["loop"]["step"] == stop
    result = lab.train(*everything, name="cut", samples=samples)
    assert result.ended == "finished"
    assert lab.open("cut").read_manifest().status == "finished"
    assert {row["segment"] for row in lab.open("cut").metrics("train")} == set(range(len(stops) + 1))
    lab.must_be_equal("whole", "cut")


@pytest.mark.parametrize("crash", [slow(2), slow(5), 9, slow(11)])
def test_a_run_that_lost_steps_repeats_them_bit_for_bit(lab, crash: int):
    overrides = (*ACCUMULATED, "fp16=true", "checkpoint.save_steps=3", *SPARSE)
    lab.train(*overrides, name="whole", samples="documents")
    with lab.crashing_at(crash):
        lab.train(*overrides, name="cut", samples="documents")
    lab.train(*overrides, name="cut", samples="documents")
    assert [event["step"] for event in lab.events("resume", "cut")] == ([3 * ((crash - 1) // 3)] if crash > 3 else [])
    lab.must_be_equal("whole", "cut")


def test_epochs_that_end_inside_a_batch_continue_bit_for_bit(lab):
    overrides = (
        *SIZED_IN_EPOCHS,
        "model.dropout=0.1",
    )
    lab.train(*overrides, name="whole", samples="documents")
    total = lab.rows("whole")[-1]["step"]
    assert total > 3
    for stop in range(1, total):
        with lab.interrupted_at(stop):
            lab.train(*overrides, name="cut", samples="documents")
    lab.train(*overrides, name="cut", samples="documents")
    lab.must_be_equal("whole", "cut")


def test_skipped_updates_are_counted_on_over_a_resume(lab):
    def run(name):
        with lab.poisoned_at(2, 3, 8):
            return lab.train(*SPARSE, name=name)

    run("whole")
    with lab.interrupted_at(3):
        run("cut")
    run("cut")
    assert lab.rows("cut")[-1]["skipped_updates"] == 3
    lab.must_be_equal("whole", "cut")


def test_updates_that_make_up_for_skipped_ones_after_the_last_epoch_are_the_same_after_a_resume(lab):
    """The last planned batch of a run sized in epochs is short. What follows must not depend on where it was cut."""
    overrides = (
        *SIZED_IN_EPOCHS,
        "schedule.floor=0.5",
        *SPARSE,
    )

    def run(name):
        with lab.poisoned_at(1, 2):
            return lab.train(*overrides, name=name, samples="documents")

    run("whole")
    with lab.interrupted_at(3):
        run("cut")
    run("cut")
    assert lab.rows("cut")[-1]["skipped_updates"] == 2
    lab.must_be_equal("whole", "cut")


@pytest.mark.parametrize("damage", [slow("truncated"), "one bit", slow("missing file")])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(lab, damage: str):
    overrides = ("checkpoint.save_steps=3", "evaluation.eval_steps=100", "model.dropout=0.1")
    lab.train(*overrides, name="whole")
    with lab.crashing_at(8):
        lab.train(*overrides, name="cut")
    file = lab.open("cut").checkpoints / "step-00000006" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        file.write_bytes(content[:-5])
    elif damage == "one bit":
        content[-20] ^= 4
        file.write_bytes(content)
    else:
        file.unlink()
    lab.train(*overrides, name="cut")
    (event,) = lab.events("checkpoint_damaged", "cut")
    assert event["step"] == 6 and "optimizer.safetensors" in event["reason"]
    assert [event["step"] for event in lab.events("resume", "cut")] == [3]
    lab.must_be_equal("whole", "cut")


def test_a_run_whose_checkpoints_are_all_damaged_is_not_started_anew(lab):
    with lab.crashing_at(8):
        lab.train("checkpoint.save_steps=6")
    next(lab.open().checkpoints.glob("step-*/state.json")).unlink()
    with pytest.raises(CheckpointError, match="all are damaged"):
        lab.train("checkpoint.save_steps=6")
    assert lab.open().read_manifest().status == "failed", "the crash, not the attempt to resume"
    assert len(lab.open().read_manifest().segments) == 1


def test_a_finished_run_is_not_trained_again(lab):
    lab.train()
    before = {path: path.read_bytes() for path in lab.open().path.rglob("*") if path.is_file()}
    again = lab.train()
    assert again.ended == "already finished"
    assert again.best["step"] == 12 and again.last["step"] == 12
    assert {path: path.read_bytes() for path in lab.open().path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("file", ["model.safetensors", "loop.safetensors", "state.json", "complete.json"])
def test_a_finished_run_whose_last_checkpoint_is_damaged_trains_its_end_again(lab, file: str):
    lab.train("checkpoint.save_steps=3", name="whole")
    lab.train("checkpoint.save_steps=3")
    path = lab.open().checkpoints / "step-00000012" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    assert lab.train("checkpoint.save_steps=3").ended == "finished"
    (event,) = lab.events("checkpoint_damaged")
    assert event["step"] == 12 and [event["step"] for event in lab.events("resume")] == [9]
    lab.must_be_equal("whole", "run")
    assert lab.train("checkpoint.save_steps=3").ended == "already finished"


def test_a_finished_run_without_checkpoints_stays_finished(lab):
    lab.train()
    lab.open().drop_checkpoints()
    assert lab.train().ended == "already finished"


def test_resume_takes_the_configuration_of_the_folder(lab):
    from trainbook import api

    lab.train(name="whole")
    with lab.interrupted_at(5):
        lab.train(name="cut")
    assert api.resume(lab.open("cut").path, quiet=True).ended == "finished"
    lab.must_be_equal("whole", "cut")


def test_resume_finds_the_run_from_inside_its_folder_and_through_a_link(lab, monkeypatch):
    from trainbook import api

    lab.train(name="whole")
    with lab.interrupted_at(3):
        lab.train(name="cut")
    (lab.root / "link").symlink_to(lab.open("cut").path)
    with lab.interrupted_at(7):
        api.resume(lab.root / "link", quiet=True)
    monkeypatch.chdir(lab.open("cut").path)
    assert api.resume(".", quiet=True).ended == "finished"
    lab.must_be_equal("whole", "cut")


def test_the_loss_scale_comes_back_with_the_checkpoint(lab):
    overrides = ("fp16=true", "precision.growth_interval=2", "precision.initial_scale_power=4")
    with lab.interrupted_at(7):
        lab.train(*overrides)
    saved = lab.state()["precision"]
    assert float(saved["scale"]) == 2.0**7 and int(saved["clean_steps"]) == 1
    lab.train(*overrides)
    by_step = {row["step"]: row["loss_scale"] for row in lab.rows()}
    assert by_step[7] == 2.0**7 and by_step[8] == 2.0**8


def test_what_a_resumed_process_finds_different_around_itself_is_an_event(lab, monkeypatch):
    with lab.interrupted_at(3):
        lab.train()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        lab.train()
    finally:
        torch.set_num_threads(threads)
    assert f"threads: {threads} -> {threads + 1}" in [event["reason"] for event in lab.events("config_change")]
