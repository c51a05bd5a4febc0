from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tests.conftest import needs
from tests.parallel.strategy_cases import Reference, StrategyCases, World, reference
from tests.parallel.test_across_worlds import DDP, FSDP, SINGLE, STOP_AT, WITH_CHANCE, Worlds, overrides
from tests.parallel.worker import rejected

from trainbook.errors import ConfigError, MissingExtra
from trainbook.knobs import load
from trainbook.parallel import RankEnv, Ranks, must_suit

__all__ = ["reference"]

pytestmark = needs("deepspeed")

ZERO = {stage: {"distributed.strategy": "deepspeed", "distributed.zero_stage": stage} for stage in (1, 2, 3)}


class ZeroCases(StrategyCases):
    has_replicas = False  # what an update leaves on all ranks is sent to each by the one that updates it
    names_ranks = False  # the engine owns its step: nothing is computed again

    def weights(self, ranks: int) -> float:
        """Of the model: those that are computed with, and the slice that is updated."""
        return 1 + 1 / ranks

    def accumulated(self, seen: dict[str, int], ranks: int) -> float:
        """Bytes of gradients that are kept between two micro-batches."""
        return seen["all_weights"] / ranks

    def held_by(self, world: int) -> int:
        return world

    def test_a_rank_holds_what_the_stage_says(self, world: World):
        for seen in world.seen("weighed"):
            assert seen["both_weights"] == pytest.approx(self.weights(world.size) * seen["all_weights"], rel=0.05)
            assert seen["accumulated"] == pytest.approx(self.accumulated(seen, world.size), rel=0.05)


@pytest.mark.slow
class TestZero1(ZeroCases):
    strategy: ClassVar = {"strategy": "deepspeed", "zero_stage": 1}
    # The number of targets, the gradients once, the norms of two groups for the guard and once more for the engine, the
    # losses; and the weights of two groups to all.
    collectives: ClassVar = {1: {"gloo:all_reduce": 5}, 2: {"gloo:all_reduce": 7, "gloo:all_gather": 2}}

    def accumulated(self, seen: dict[str, int], ranks: int) -> float:
        return seen["all_weights"]


class TestZero2(ZeroCases):
    strategy: ClassVar = {"strategy": "deepspeed", "zero_stage": 2}
    # The same, but gradients after each of two micro-batches.
    collectives: ClassVar = {1: {"gloo:all_reduce": 6}, 2: {"gloo:all_reduce": 8, "gloo:all_gather": 2}}

    def accumulated(self, seen: dict[str, int], ranks: int) -> float:
        return seen["touched"]  # a parameter that lies across two ranks is accumulated by both


@pytest.mark.slow
class TestZero3(ZeroCases):
    """With every weight cut up, be it small: a setting that only the file has, so that it is passed on."""

    strategy: ClassVar = {"strategy": "deepspeed", "zero_stage": 3}
    # The same, but weights are brought together for each of two micro-batches: so small a model then stays.
    collectives: ClassVar = {1: {"gloo:all_reduce": 6}, 2: {"gloo:all_reduce": 8, "gloo:all_gather": 2}}

    @classmethod
    def make(cls, size: int, reference: Reference, folder: Path) -> World:
        file = folder / "deepspeed.json"
        file.write_text(json.dumps({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}))
        return World(reference.lab, size, {**cls.strategy, "deepspeed_config": file}, folder)

    def weights(self, ranks: int) -> float:
        return 2 / ranks


# Checkpoints, from and to the other strategies

REJECTED = [4, 12]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """All that two processes have to do."""
    worlds = Worlds(tmp_path_factory.mktemp("two"))
    worlds.begin_alone("single-zero1")
    worlds.run(
        2,
        worlds.case("single-zero1", "single-zero1", ZERO[1]),
        worlds.case("fsdp-zero3", "fsdp-zero3 begun", FSDP, stop_at=STOP_AT),
        worlds.case("fsdp-zero3", "fsdp-zero3", ZERO[3]),
        worlds.case("zero3-fsdp", "zero3-fsdp begun", ZERO[3], stop_at=STOP_AT),
        worlds.case("zero3-fsdp", "zero3-fsdp", FSDP),
        worlds.case("zero2-single", "zero2-single", ZERO[2], stop_at=STOP_AT),
        *(worlds.case(f"rejected-{stage}", f"rejected-{stage}", ZERO[stage], reject_at=REJECTED) for stage in (2, 3)),
    )
    worlds.go_on_alone("zero2-single")
    return worlds


@pytest.mark.parametrize("run", ["single-zero1", "fsdp-zero3", "zero3-fsdp", "zero2-single"])
def test_a_run_goes_on_with_another_strategy(two: Worlds, run: str):
    two.must_be_as_if_nothing_had_happened(run)


@pytest.mark.parametrize("stage", [2, 3])
def test_an_update_that_the_guard_rejects_is_not_applied_though_it_is_finite(two: Worlds, stage: int):
    """The engine would have applied it: it skips by itself only what is not finite."""
    if not (two.lab.runs / "rejected").exists():
        with two.lab.around_step(rejected(REJECTED)):
            two.lab.train(*overrides(SINGLE), name="rejected", samples="documents")
    theirs, ours = two.lab.rows("rejected"), two.lab.rows(f"rejected-{stage}")
    assert ours[-1]["applied_updates"] == theirs[-1]["applied_updates"] == 13  # and so it has two steps more
    for name, relative in (("step", 0), ("learning_rate", 0), ("loss", 1e-5), ("grad_norm", 1e-4)):
        assert [row[name] for row in ours] == pytest.approx([row[name] for row in theirs], rel=relative, abs=0), name


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    worlds = Worlds(tmp_path_factory.mktemp("more"))
    chance, on_host = {**ZERO[3], **WITH_CHANCE}, {"distributed.offload_optimizer": "cpu"}
    weights_too = {"distributed.offload_parameters": "cpu"}
    worlds.run(
        2,
        worlds.case("chance-whole", "chance-whole", chance),
        worlds.case("chance-twice", "chance-twice begun", chance, stop_at=STOP_AT),
        worlds.case("chance-twice", "chance-twice", chance),
        worlds.case("zero2-host", "zero2-host", {**ZERO[2], **on_host}, on_host=1),
        worlds.case("zero3-host", "zero3-host", {**ZERO[3], **on_host, **weights_too}, on_host=1),
        worlds.case("recomputed", "recomputed", {**ZERO[3], "memory.gradient_checkpointing": "full"}),
        worlds.case("small-buckets", "small-buckets", {**ZERO[2], "distributed.bucket_mb": 0.01}),
    )
    return worlds


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_with_two_bit_for_bit(more: Worlds):
    (resumed,) = more.lab.events("resume", "chance-twice")
    assert resumed["step"] == STOP_AT
    more.lab.must_be_equal("chance-whole", "chance-twice")


@pytest.mark.slow
@pytest.mark.parametrize("run", ["zero2-host", "zero3-host", "recomputed", "small-buckets"])
def test_where_things_lie_and_when_they_travel_does_not_change_what_is_trained(more: Worlds, run: str):
    """Offloading is refused on a CPU, since it saves nothing; its arithmetic is the same as on a GPU."""
    theirs, ours = more.lab.rows("whole"), more.lab.rows(run)
    for name, relative in (("loss", 1e-5), ("grad_norm", 1e-4), ("learning_rate", 0)):
        assert [row[name] for row in ours] == pytest.approx([row[name] for row in theirs], rel=relative), name


@pytest.mark.slow
def test_runs_of_four_processes_go_on_with_two_and_with_one(tmp_path_factory: pytest.TempPathFactory):
    worlds = Worlds(tmp_path_factory.mktemp("four"))
    begun = {"fsdp-two": FSDP, "zero3-one": ZERO[3], "zero2-two": ZERO[2], "zero1-two": ZERO[1]}
    worlds.run(4, *(worlds.case(run, run, strategy, stop_at=STOP_AT) for run, strategy in begun.items()))
    worlds.go_on_alone("zero3-one")
    worlds.run(
        2,
        worlds.case("fsdp-two", "fsdp-two again", ZERO[3]),
        worlds.case("zero2-two", "zero2-two again", DDP),
        worlds.case("zero1-two", "zero1-two again", ZERO[2]),
    )
    for run in begun:
        worlds.must_be_as_if_nothing_had_happened(run)


# What is refused before anything is built

TINY = {"training.max_steps": 3, "batch.global_batch_size": 16}


def suits(world: int = 1, compute: str = "fp32", **knobs: object) -> None:
    config = load({**TINY, **ZERO[2], **{f"distributed.{name}": value for name, value in knobs.items()}}).config
    must_suit(config, Ranks(RankEnv(world=world)), torch.device("cpu"), compute)


def test_a_package_that_is_missing_is_named_with_its_pip_line(monkeypatch: pytest.MonkeyPatch):
    suits()
    monkeypatch.setattr("trainbook.parallel.deepspeed.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"'deepspeed'\. Install it with: pip install 'trainbook\[deepspeed\]'"):
        suits()


@pytest.mark.parametrize("knob", ["offload_optimizer", "offload_parameters"])
def test_there_is_nothing_to_offload_from_on_a_cpu(knob: str):
    with pytest.raises(ConfigError, match=f"distributed.{knob}: needs a GPU, but there is none"):
        suits(**{knob: "cpu", "zero_stage": 3})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"train_batch_size": 32}, "train_batch_size is 32, but batch.global_batch_size is 16."),
        (
            {"train_micro_batch_size_per_gpu": 16},
            "train_micro_batch_size_per_gpu is 16, but batch.per_device_train_batch_size is null, which gives 8.",
        ),
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4, but batch.gradient_accumulation_steps"),
        ({"bf16": {"enabled": True}}, "bf16.enabled is true, but precision.compute is 'auto', which gives false."),
    ],
)
def test_batch_sizes_of_the_file_are_those_of_so_many_processes(tmp_path: Path, said: dict, message: str):
    file = tmp_path / "deepspeed.json"
    file.write_text(json.dumps(said))
    with pytest.raises(ConfigError) as raised:
        suits(world=2, deepspeed_config=str(file))
    (problem,) = raised.value.problems
    assert problem.where == str(file) and f"{problem.name} {problem.message}".startswith(message)


def test_a_file_that_agrees_is_accepted(tmp_path: Path):
    file = tmp_path / "deepspeed.json"
    batch = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": "auto"}
    file.write_text(json.dumps({**batch, "bf16": {"enabled": True}}))
    suits(world=2, compute="bf16", deepspeed_config=str(file))
