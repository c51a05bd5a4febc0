"""A checkpoint knows nothing of the processes that it was saved by: any number goes on with it, with any strategy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import Lab
from tests.parallel.strategy_cases import overrides
from tests.parallel.world import run_world

STOP_AT = 10  # of 21 steps; where several ranks ask each other whether to stop, so that all worlds stop there
SINGLE, DDP, FSDP = ({"distributed.strategy": name} for name in ("single", "ddp", "fsdp"))
# Chance takes part: each rank has its own, which must come again.
WITH_CHANCE = {"model.dropout": 0.1, "data.padding": "bucketed"}


class Worlds:
    """Runs that are begun by one world and gone on with by another, beside one that nothing interrupted."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
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
        seen = run_world(world, list(cases), self.lab.root)
        for case in cases:
            ended = f"SIGTERM: saved at step {STOP_AT}" if "stop_at" in case else "finished"
            assert all(each["ended"].startswith(ended) for each in seen[case["name"]]), seen[case["name"]]

    def must_be_as_if_nothing_had_happened(self, run: str) -> None:
        (resumed,) = self.lab.events("resume", run)
        assert resumed["step"] == STOP_AT
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


@pytest.mark.slow
def test_a_run_of_four_processes_goes_on_with_one_and_with_two(tmp_path_factory: pytest.TempPathFactory):
    worlds = Worlds(tmp_path_factory.mktemp("four"))
    worlds.run(4, *(worlds.case(run, run, FSDP, stop_at=STOP_AT) for run in ("four-one", "four-two")))
    worlds.go_on_alone("four-one")
    worlds.run(2, worlds.case("four-two", "four-two again", DDP))
    for run in ("four-one", "four-two"):
        worlds.must_be_as_if_nothing_had_happened(run)
