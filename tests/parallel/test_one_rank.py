"""Faults of one rank among several: all decide alike, the rank is named, and the run heals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import Lab, text_of
from tests.parallel.world import run_world

SETTINGS = {
    **{"batch.global_batch_size": 8, "training.max_steps": 60, "optimizer.learning_rate": 2e-2},
    **{"batch.gradient_accumulation_steps": 2, "model.dropout": 0.1, "data.max_seq_length": 32},
    **{"logging.dense_steps": 0, "logging.logging_steps": 10, "guard.max_consecutive_skips": 5},
    **{"evaluation.eval_steps": 60, "checkpoint.save_steps": 20, "guard.snapshot_steps": 10},
}
AT = 50
# Half a batch of random labels is 4.2 deviations off here: too little for the usual threshold of 10.
STRICT = {"guard.skip_threshold": 5}
CASES: dict[str, dict[str, Any]] = {
    "clean": {"note_bits": True},
    "nan": {"inject": [f"nan-gradient@{AT}:rank=1"], "note_bits": True},
    "exploding": {"inject": [f"exploding-gradient@{AT}:rank=1"], "note_bits": True},
    "skipped": {"reject_at": [AT]},
    "poison": {"inject": [f"random-labels@{AT}:rank=1"], "note_bits": True, "settings": STRICT},
    "poison_of_all": {"inject": [f"random-labels@{AT}"], "note_bits": True, "settings": STRICT},
    "flip": {"inject": [f"bit-flip@{AT}:rank=1"], "note_bits": True},
    "flip_of_the_first": {"inject": [f"bit-flip@{AT}:rank=0"], "note_bits": True},
}


class World:
    def __init__(self, folder: Path, strategy: str) -> None:
        self.lab = Lab(folder)
        self.lab.text.write_text(text_of(6000))
        self.strategy = strategy
        given = []
        for name, case in CASES.items():
            settings = {**SETTINGS, **case.get("settings", {}), "distributed.strategy": strategy}
            overrides = [f"{path}={value}" for path, value in settings.items()]
            given.append({"name": name, "config": self.lab.config(), "overrides": overrides, **case})
        self.seen = run_world(2, given, folder)

    def events(self, name: str, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.lab.open(name).events(raw=True) if event["kind"] in kinds]

    def at_fault(self, name: str, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events(name, kind) if event["step"] == AT]

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        return self.lab.state(name)["model"]


@pytest.fixture(scope="module", params=["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp(request.param), request.param)


def must_be_healed(world: World, name: str) -> None:
    assert [seen["ended"] for seen in world.seen[name]] == ["finished", "finished"]
    assert all(weights.isfinite().all() for weights in world.weights(name).values())
    one, two = (seen["bits"] for seen in world.seen[name])
    assert len(one) == len(two), "both attempted the same steps"
    if world.strategy == "ddp":
        assert one == two, "and hold the same weights after each of them"


def test_a_healthy_run_is_left_alone(world: World):
    must_be_healed(world, "clean")
    assert world.events("clean", "skip", "quarantine", "corruption", "rollback") == []


@pytest.mark.parametrize(("name", "reason"), [("nan", "is NaN"), ("exploding", "standard deviations above")])
def test_a_bad_gradient_of_one_rank_is_skipped_by_all_and_told_with_the_rank(world: World, name: str, reason: str):
    must_be_healed(world, name)
    (skip,) = world.events(name, "skip")
    assert skip["step"] == AT and skip["ranks"] == [1]
    assert reason in skip["reason"] and skip["reason"].endswith("the cause is on rank 1")
    assert [event["fault"] for event in world.events(name, "inject")] == CASES[name]["inject"]
    assert world.events(name, "corruption", "rollback") == []
    torch.testing.assert_close(world.weights(name), world.weights("skipped"), rtol=0, atol=0)


def test_poison_that_only_one_rank_has_is_told_with_it_and_its_samples_are_found(world: World):
    must_be_healed(world, "poison")
    (skip,) = world.at_fault("poison", "skip")
    assert skip["ranks"] == [1] and world.events("poison", "corruption") == []
    (spoilt,) = (event["ids"] for event in world.events("poison", "inject"))
    assert len(spoilt) == SETTINGS["batch.global_batch_size"] / 2
    (found,) = world.at_fault("poison", "quarantine")
    assert found["ranks"] == [1] and "all of them on rank 1" in found["reason"]
    assert sorted(found["ids"]) == sorted(spoilt)


def test_poison_of_all_ranks_names_none(world: World):
    must_be_healed(world, "poison_of_all")
    (skip,) = world.at_fault("poison_of_all", "skip")
    assert "ranks" not in skip and "rank" not in skip["reason"]
    (spoilt,) = (event["ids"] for event in world.events("poison_of_all", "inject"))
    (found,) = world.at_fault("poison_of_all", "quarantine")
    assert found["ranks"] == [0, 1] and set(found["ids"]) <= set(spoilt)


@pytest.mark.parametrize(("name", "rank"), [("flip", 1), ("flip_of_the_first", 0)])
def test_a_flipped_bit_on_one_rank_is_named_with_it_and_costs_nothing(world: World, name: str, rank: int):
    must_be_healed(world, name)
    (event,) = world.events(name, "corruption")
    assert event["step"] == AT and event["ranks"] == [rank] and f"rank {rank}, " in event["reason"]
    assert event["hosts"][0] in event["reason"] and event["devices"][0] in event["reason"]
    assert world.events(name, "skip", "quarantine", "rollback") == []
    world.lab.must_be_equal("clean", name)
    assert [seen["bits"] for seen in world.seen[name]] == [seen["bits"] for seen in world.seen["clean"]]
