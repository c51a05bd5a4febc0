"""A checkpoint knows nothing of the processes that it was saved by: any number goes on with it, with any strategy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import Lab
from tests.parallel import strategy_cases
from tests.parallel.strategy_cases import LONG
from tests.parallel.worker import nan_on_one_rank
from tests.parallel.world import run_world

from trainbook.checkpoints import CheckpointStore
from trainbook.loop.export import export_run

STOP_AT = 10  # of 13 steps; where several ranks ask each other whether to stop, so that all worlds stop there
SINGLE, DDP, FSDP = ({"distributed.strategy": name} for name in ("single", "ddp", "fsdp"))
HYBRID = {**FSDP, "distributed.shard_over": 2}
# Chance takes part: each rank has its own, which must come again.
SAVED_AT, DAMAGED_AT = 5, 10  # the checkpoint of which a bit is flipped, so that the one before is taken
# Updates are rejected until the run goes back, to a checkpoint: there is no room for copies in memory.
GOES_BACK = {**LONG, "guard.max_consecutive_skips": 4, "checkpoint.save_total_limit": 9}
NAN_ROW, BACK_TO = [15, 16, 17, 18], 5
SHORT = {"training.num_train_epochs": "null", "training.max_steps": 2, "schedule.warmup_steps": 1}
WITH_CHANCE = {"model.dropout": 0.1, "data.padding": "bucketed"}


def overrides(settings: Mapping[str, Any]) -> list[str]:
    return strategy_cases.overrides({"checkpoint.save_steps": SAVED_AT, **settings})


class Worlds:
    """Runs that are begun by one world and gone on with by another, beside one that nothing interrupted."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        self.seen: dict[str, list[dict[str, Any]]] = {}  # of the last world
        self.lab.train(*overrides(SINGLE), name="whole", samples="documents")

    def begin_alone(self, run: str) -> None:
        with self.lab.interrupted_at(STOP_AT):
            self.go_on_alone(run)

    def go_on_alone(self, run: str) -> None:
        self.lab.train(*overrides(SINGLE), name=run, samples="documents")

    def case(self, run: str, name: str, settings: Mapping[str, Any], **special: Any) -> dict[str, Any]:
        given = overrides(settings)
        return {"name": name, "run": run, "config": self.lab.config("documents"), "overrides": given, **special}

    def run(self, world: int, *cases: dict[str, Any]) -> None:
        self.seen = run_world(world, list(cases), self.lab.root)
        for case in cases:
            ended = f"SIGTERM: saved at step {case['stop_at']}" if "stop_at" in case else "finished"
            ended = case.get("ends", ended)
            assert all(each["ended"].startswith(ended) for each in self.seen[case["name"]]), self.seen[case["name"]]

    def must_be_as_if_nothing_had_happened(self, run: str, resumed_at: int = STOP_AT) -> None:
        (resumed,) = self.lab.events("resume", run)
        assert resumed["step"] == resumed_at
        theirs, ours = self.lab.rows("whole"), self.lab.rows(run)
        assert [row["step"] for row in ours] == [row["step"] for row in theirs]
        for name in ("tokens", "epoch", "learning_rate", "applied_updates"):
            assert [row[name] for row in ours] == [row[name] for row in theirs], name
        for name, relative in (("loss", 1e-5), ("grad_norm", 1e-4)):
            assert [row[name] for row in ours] == pytest.approx([row[name] for row in theirs], rel=relative), name
        theirs, ours = self.lab.rows("whole", "eval"), self.lab.rows(run, "eval")
        assert [(row["step"], row["targets"]) for row in ours] == [(row["step"], row["targets"]) for row in theirs]
        assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], rel=1e-5)
        theirs, ours = self.lab.state("whole"), self.lab.state(run)
        must_be_close(ours["model"], theirs["model"])
        must_be_close(flat(ours["optimizer"]), flat(theirs["optimizer"]))


def flat(optimizer: Mapping[str, Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    return {f"{name}/{key}": value for name, kept in optimizer.items() for key, value in kept.items()}


def must_be_close(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        near_zero = 1e-4 * float(value.abs().max())  # squares of gradients are small everywhere
        torch.testing.assert_close(
            ours[name], value, rtol=1e-4, atol=near_zero, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """All that two processes have to do."""
    worlds = Worlds(tmp_path_factory.mktemp("two"))
    worlds.begin_alone("single-fsdp")
    cases = [
        worlds.case("single-fsdp", "single-fsdp", FSDP),
        worlds.case("fsdp-single", "fsdp-single", FSDP, stop_at=STOP_AT),
        worlds.case("fsdp-ddp", "fsdp-ddp begun", FSDP, stop_at=STOP_AT),
        worlds.case("fsdp-ddp", "fsdp-ddp", DDP),
    ]
    for name, strategy in (("ddp", DDP), ("fsdp", FSDP)):
        settings = {**strategy, **WITH_CHANCE}
        cases += [
            worlds.case(f"{name}-whole", f"{name}-whole", settings),
            worlds.case(f"{name}-twice", f"{name}-twice begun", settings, stop_at=STOP_AT),
            worlds.case(f"{name}-twice", f"{name}-twice", settings),
        ]
    damaged = f"step-{DAMAGED_AT:08d}/optimizer-00002-of-00002.safetensors"
    failure = f"The checkpoint of step {DAMAGED_AT} could not be written"
    back = {**FSDP, **GOES_BACK}
    cases += [
        worlds.case("flipped", "flipped begun", FSDP, stop_at=DAMAGED_AT),
        worlds.case("flipped", "flipped", FSDP, flip=damaged),
        worlds.case("full", "full", FSDP, full_disk_at=DAMAGED_AT, ends=failure),
        worlds.case("weighed", "weighed", {**FSDP, **SHORT, "model.hidden_size": 64}, weigh_saves=1),
        worlds.case("back", "back", back, nan_at=NAN_ROW, no_snapshots=1),
    ]
    worlds.run(2, *cases)
    worlds.go_on_alone("fsdp-single")
    return worlds


@pytest.mark.parametrize("run", ["single-fsdp", "fsdp-single", "fsdp-ddp"])
def test_a_run_goes_on_with_another_strategy(two: Worlds, run: str):
    two.must_be_as_if_nothing_had_happened(run)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_of_two_processes_goes_on_with_two_bit_for_bit(two: Worlds, strategy: str):
    (resumed,) = two.lab.events("resume", f"{strategy}-twice")
    assert resumed["step"] == STOP_AT
    two.lab.must_be_equal(f"{strategy}-whole", f"{strategy}-twice")


def test_each_process_has_chance_of_its_own(two: Worlds):
    """Else the runs above would be equal however it is seeded."""
    assert two.lab.rows("ddp-whole")[0]["loss"] != pytest.approx(two.lab.rows("whole")[0]["loss"], rel=1e-5)


def test_a_bit_that_is_flipped_in_any_ranks_file_is_noticed_and_all_take_the_older_checkpoint(two: Worlds):
    (told,) = two.lab.events("checkpoint_damaged", "flipped")
    assert told["step"] == DAMAGED_AT and "optimizer-00002-of-00002.safetensors has changed" in told["reason"]
    two.must_be_as_if_nothing_had_happened("flipped", SAVED_AT)


def test_a_rank_that_cannot_write_ends_all_with_one_message_and_the_older_checkpoint_is_whole(two: Worlds):
    checkpoints = two.lab.open("full").checkpoints
    (message,) = {each["ended"] for each in two.seen["full"]}
    assert f"to {checkpoints}/step-{DAMAGED_AT:08d}: on rank 1, the disk is full (No space left on device)" in message
    assert message.endswith(
        f"The last complete checkpoint is that of step {SAVED_AT}, {checkpoints}/step-{SAVED_AT:08d}."
    )
    assert sorted(each.name for each in checkpoints.iterdir()) == ["index.json", f"step-{SAVED_AT:08d}"]
    assert two.lab.state("full")["loop"]["step"] == SAVED_AT
    assert [event["reason"] for event in two.lab.events("failure", "full")] == [message]


def test_no_rank_saves_more_than_its_slices(two: Worlds):
    """That nothing is brought together for it is seen to by the rank itself: see `saving.py`."""
    state = two.lab.state("weighed")
    tensors = [*state["model"].values(), *flat(state["optimizer"]).values()]
    whole = sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())
    for seen in two.seen["weighed"]:
        assert 0.45 * whole < seen["saved"] < 0.55 * whole


def test_ranks_go_back_to_a_checkpoint_together_as_one_device_does(two: Worlds, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trainbook.loop.guard_actions.SHARE_OF_HOST", 0.0)
    with two.lab.around_step(nan_on_one_rank(NAN_ROW, rank=0)):
        two.lab.train(*overrides({**SINGLE, **GOES_BACK}), name="back-alone", samples="documents")
    theirs, ours = two.lab.events("rollback", "back-alone"), two.lab.events("rollback", "back")
    assert [event["reason"] for event in ours] == [event["reason"] for event in theirs]
    assert ours[0]["reason"].endswith(f"Rolled back from step {NAN_ROW[-1]} to step {BACK_TO}, from a checkpoint")
    theirs, ours = two.lab.rows("back-alone"), two.lab.rows("back")
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], rel=1e-5, nan_ok=True)


def test_a_checkpoint_of_slices_is_exported_as_if_one_rank_had_written_it(two: Worlds, tmp_path: Path):
    pytest.importorskip("transformers")
    run = two.lab.open("fsdp-whole")
    newest = max(run.checkpoints.glob("step-*"))
    step = int(newest.name.removeprefix("step-"))
    assert len(list(newest.glob("model-*"))) == 2
    export_run(run, tmp_path / "sliced", checkpoint=str(step))
    state = two.lab.state("fsdp-whole", step)
    for path in run.checkpoints.iterdir():  # the run is read by nobody after this
        path.rename(tmp_path / path.name)
    CheckpointStore(run.checkpoints).save(step, state)
    assert (run.checkpoints / newest.name / "model.safetensors").exists()
    export_run(run, tmp_path / "gathered", checkpoint=str(step))
    names = sorted(path.name for path in (tmp_path / "sliced").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "gathered").iterdir()) and "model.safetensors" in names
    for name in names:
        assert (tmp_path / "sliced" / name).read_bytes() == (tmp_path / "gathered" / name).read_bytes(), name


@pytest.mark.slow
def test_a_run_of_four_processes_goes_on_with_any_others_and_they_with_four(tmp_path_factory: pytest.TempPathFactory):
    worlds = Worlds(tmp_path_factory.mktemp("four"))
    begun = {"four-one": FSDP, "four-two": FSDP, "four-fsdp": FSDP, "hybrid-two": HYBRID, "hybrid-one": HYBRID}
    worlds.run(4, *(worlds.case(run, run, strategy, stop_at=STOP_AT) for run, strategy in begun.items()))
    worlds.go_on_alone("four-one")
    worlds.go_on_alone("hybrid-one")
    worlds.run(
        2,
        worlds.case("four-two", "four-two again", DDP),
        worlds.case("four-fsdp", "four-fsdp again", FSDP),
        worlds.case("hybrid-two", "hybrid-two again", FSDP),
        *(worlds.case(run, run, FSDP, stop_at=STOP_AT) for run in ("two-four", "two-hybrid")),
    )
    worlds.run(
        4, worlds.case("two-four", "two-four again", FSDP), worlds.case("two-hybrid", "two-hybrid again", HYBRID)
    )
    for run in (*begun, "two-four", "two-hybrid"):
        worlds.must_be_as_if_nothing_had_happened(run)


@pytest.mark.slow
def test_a_rank_that_dies_while_it_saves_costs_that_checkpoint_alone(tmp_path_factory: pytest.TempPathFactory):
    worlds = Worlds(tmp_path_factory.mktemp("dies"))
    with pytest.raises(AssertionError, match=r"RuntimeError: .*gloo"):  # what the other says at once, and leaves
        worlds.run(2, worlds.case("dies", "dies", FSDP, die_at=DAMAGED_AT))
    checkpoints = worlds.lab.open("dies").checkpoints
    assert sorted(each.name for each in checkpoints.iterdir()) == ["index.json", f"step-{SAVED_AT:08d}"]
    worlds.go_on_alone("dies")
    worlds.must_be_as_if_nothing_had_happened("dies", SAVED_AT)
