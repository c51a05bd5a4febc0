"""What every strategy must hold: on any number of processes, the training of one device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.conftest import Lab, slow
from tests.parallel.worker import nan_on_one_rank
from tests.parallel.world import Processes

from trainbook import api

EPOCHS, LONG = 3.12, {"training.num_train_epochs": 5.44}  # 12 or 21 whole steps, and one of a single sample
# Documents of unequal lengths, two micro-batches a rank, and a last step of one sample: too short for several ranks.
SHARED: Mapping[str, Any] = {
    "batch.global_batch_size": 16,
    "batch.gradient_accumulation_steps": 2,
    "batch.max_grad_norm": 0.5,
    "model.num_hidden_layers": 2,
    "model.dropout": 0.0,
    "schedule.warmup_steps": 2,
    "optimizer.learning_rate": 3e-3,
    "evaluation.eval_steps": 5,
    "evaluation.eval_max_samples": 9,  # a last batch of one sample: too short for several ranks as well
    "logging.logging_steps": 1,
    "checkpoint.save_steps": 10,
    "training.max_steps": "null",
    "training.num_train_epochs": EPOCHS,
}
BERT = {"model.type": "bert", "model.norm_position": "pre"}
T5 = {
    "model.type": "t5",
    "model.position": "relative",
    "model.norm": "rmsnorm",
    "model.attention_scale": "none",
    "model.parametrization": "mup",
    "model.base_hidden_size": 8,
    "training.task": "seq2seq",
    "data.source": "builtin:reverse?size=70",
    "evaluation.generate": "true",
}
EMBEDDINGS = {"model.embedding_skip": "true", "model.value_embeddings": "alternate"}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "gpt": {"model.position": "learned"},
    "embeddings": EMBEDDINGS,
    "bert": BERT,
    "t5": T5,
}
NAN_AT, STOP_AT, FLIP_AT = 7, 8, 8
# One more than the guard bears in a row. It goes back to a snapshot from well before them, which is newer than any
# checkpoint from then; the last of them is met on the second way.
NAN_ROW, BACK_TO = range(15, 20), 6
OTHERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "bf16": ({"precision.compute": "bf16", "training.num_train_epochs": 2}, {}),
    "nan": ({}, {"nan_at": [NAN_AT]}),
    "nan_row": (
        {**LONG, "guard.max_consecutive_skips": len(NAN_ROW) - 1, "guard.snapshot_steps": BACK_TO},
        {"nan_at": list(NAN_ROW)},
    ),
    "stopped": ({}, {"stop_at": STOP_AT}),
    "flipped": ({}, {"flip_at": FLIP_AT}),
    "weighed": (
        {
            "model.hidden_size": 64,
            "training.max_steps": 1,
            "training.num_train_epochs": "null",
            "schedule.warmup_steps": 0,
        },
        {"weigh": 1},
    ),
    "counted": (
        {
            "training.max_steps": 5,
            "training.num_train_epochs": "null",
            "logging.logging_steps": 100,
            "logging.dense_steps": 0,
            "guard.snapshot_steps": 100,
        },
        {"count": [3, 4]},  # DDP arranges its buckets in the second step; in the last one, a row is written
    ),
}

# Of strategies that allow them.
OF_SOME: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "bf16_sums": ({**MODELS["gpt"], "distributed.reduce_dtype": "bf16"}, {}),
    "each_batch": ({**MODELS["gpt"], "distributed.sync_each_batch": "true"}, {}),
    "weighed_each": ({**OTHERS["weighed"][0], "distributed.sync_each_batch": "true"}, {"weigh": 1}),
    "stable": ({**MODELS["gpt"], "optimizer.type": "stable_adamw"}, {}),
    "bf16_weights": ({"precision.weights": "bf16", "optimizer.beta2": 0.95, "training.num_train_epochs": 2}, {}),
    "bf16_gathered": ({**OTHERS["bf16"][0], "distributed.gather_dtype": "compute"}, {}),
}


def overrides(settings: Mapping[str, Any]) -> list[str]:
    return [f"{path}={value}" for path, value in {**SHARED, **settings}.items()]


class Reference:
    """The same runs on one device alone, made when they are first asked for."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def rows(self, name: str, split: str) -> list[dict[str, Any]]:
        self._make(name)
        return self.lab.open(name).metrics(split)

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        self._make(name)
        return self.lab.state(name)["model"]

    def events(self, name: str) -> list[dict[str, Any]]:
        self._make(name)
        return self.lab.open(name).events(raw=True)

    def _make(self, name: str) -> None:
        if not (self.lab.runs / name).exists():
            settings, special = (MODELS[name], {}) if name in MODELS else {**OTHERS, **OF_SOME}[name]
            with self.lab.around_step(nan_on_one_rank(special.get("nan_at", ()), rank=0)):
                self.lab.train(*overrides(settings), name=name, samples="documents")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(Lab(tmp_path_factory.mktemp("reference")))


class World:
    """So many processes that train a case when it is first asked for."""

    def __init__(
        self,
        lab: Lab,
        world: int,
        strategy: Mapping[str, Any],
        folder: Path,
        allowed: Sequence[str] = (),
    ) -> None:
        self.size, self.lab = world, Lab(folder)
        settings = {f"distributed.{name}": value for name, value in strategy.items()}
        config = lab.config("documents")
        cases = {
            **{name: (each, {}) for name, each in MODELS.items()},
            **OTHERS,
            **{name: OF_SOME[name] for name in allowed},
        }
        self.cases = {
            name: {"name": name, "config": config, "overrides": overrides({**settings, **given}), **special}
            for name, (given, special) in cases.items()
        }
        self.processes = Processes(world, folder)
        self._seen: dict[str, list[dict[str, Any]]] = {}

    def seen(self, name: str) -> list[dict[str, Any]]:
        """By each rank."""
        if name not in self._seen:
            self._seen[name] = self.processes.run(self.cases[name])
        return self._seen[name]

    def rows(self, name: str, split: str) -> list[dict[str, Any]]:
        return self.run(name).metrics(split)

    def events(self, name: str, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.run(name).events(raw=True) if not kinds or event["kind"] in kinds]

    def run(self, name: str) -> Any:
        self.seen(name)
        return self.lab.open(name)

    def state(self, name: str) -> dict[str, Any]:
        self.seen(name)
        return self.lab.state(name)


class StrategyCases:
    """Inherited by the tests of each strategy, which says what it is and what it exchanges in a step."""

    strategy: ClassVar[Mapping[str, Any]]
    allowed: ClassVar[Sequence[str]] = ()  # of OF_SOME
    has_replicas = True  # of weights, on several ranks
    names_ranks = True  # where a bad value comes from
    collectives: ClassVar[
        Mapping[int, Mapping[str, int]]
    ]  # of one rank alone, and of several, in a step of two micro-batches

    models: ClassVar[Sequence[str]] = ("gpt",)  # those of the quick suite

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "model" in metafunc.fixturenames:
            metafunc.parametrize("model", [name if name in self.models else slow(name) for name in MODELS])

    @pytest.fixture(scope="class", params=[slow(1), 2, slow(4)])
    @classmethod
    def world(
        cls, request: pytest.FixtureRequest, reference: Reference, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[World]:
        made = cls.make(request.param, reference, tmp_path_factory.mktemp(f"world-{request.param}"))
        yield made
        made.processes.close()

    @classmethod
    def make(cls, size: int, reference: Reference, folder: Path) -> World:
        return World(reference.lab, size, cls.strategy, folder, cls.allowed)

    def test_losses_and_weights_are_those_of_one_device(self, world: World, reference: Reference, model: str):
        theirs, ours = reference.rows(model, "train"), world.rows(model, "train")
        assert [row["step"] for row in ours] == [row["step"] for row in theirs]
        if model == "gpt":
            assert ours[-1]["tokens"] - ours[-2]["tokens"] < 20, "the last step has one sample, fewer than some worlds"
        for name, relative in (("loss", 1e-5), ("grad_norm", 1e-4), ("tokens", 0), ("epoch", 0), ("learning_rate", 0)):
            assert [row[name] for row in ours] == pytest.approx([row[name] for row in theirs], rel=relative, abs=0)
        saved = world.state(model)["model"]
        assert saved.keys() == reference.weights(model).keys()
        for name, weights in reference.weights(model).items():
            torch.testing.assert_close(saved[name], weights, rtol=1e-4, atol=1e-5)

    def test_evaluations_are_those_of_one_device(self, world: World, reference: Reference, model: str):
        aside = ("time", "seconds", "segment")
        theirs, ours = (
            [{name: value for name, value in row.items() if name not in aside} for row in rows.rows(model, "eval")]
            for rows in (reference, world)
        )
        assert [row.keys() for row in ours] == [row.keys() for row in theirs]
        for one, other in zip(ours, theirs, strict=True):
            for name, value in other.items():
                assert one[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4)), name

    def test_bf16_stays_near(self, world: World, reference: Reference):
        theirs, ours = ([row["loss"] for row in rows.rows("bf16", "train")] for rows in (reference, world))
        assert ours == pytest.approx(theirs, rel=2e-2)

    def test_what_is_not_a_number_on_one_rank_is_rejected_by_all(self, world: World):
        """And is written down once; the schedule waits, as on one device."""
        rows = {row["step"]: row for row in world.rows("nan", "train")}
        assert math.isnan(rows[NAN_AT]["loss"]) and math.isnan(rows[NAN_AT]["grad_norm"])
        last = max(rows)
        assert rows[last]["skipped_updates"] == 1 and math.isfinite(rows[last]["loss"])
        (skip,) = world.events("nan", "skip")
        assert skip["step"] == NAN_AT and skip["reason"] == f"the loss is NaN{self.told_of(world)}"

    def told_of(self, world: World) -> str:
        """The last one of several ranks has it."""
        return f"; the cause is on rank {world.size - 1}" if world.size > 1 and self.names_ranks else ""

    def test_after_too_many_of_them_all_go_back_together_as_one_device_does(self, world: World, reference: Reference):
        theirs, ours = (
            [(event["kind"], event["step"], event["reason"]) for event in runs.events("nan_row") if "reason" in event]
            for runs in (reference, world)
        )
        ours = [(kind, step, reason.removesuffix(self.told_of(world))) for kind, step, reason in ours]
        assert ours == theirs
        back = f"Rolled back from step {NAN_ROW[-2]} to step {BACK_TO}, from memory"
        assert [reason.endswith(back) for kind, _, reason in ours if kind == "rollback"] == [True]
        assert [step for kind, step, _ in ours if kind == "skip"] == list(NAN_ROW)
        theirs, ours = reference.rows("nan_row", "train"), world.rows("nan_row", "train")
        assert [(row["step"], row["segment"]) for row in ours] == [(row["step"], row["segment"]) for row in theirs]
        for name, relative in (
            ("loss", 1e-5),
            ("tokens", 0),
            ("epoch", 0),
            ("learning_rate", 0),
            ("skipped_updates", 0),
        ):
            expected = pytest.approx([row[name] for row in theirs], rel=relative, abs=0, nan_ok=True)
            assert [row[name] for row in ours] == expected, name
        for name, weights in reference.weights("nan_row").items():
            torch.testing.assert_close(world.state("nan_row")["model"][name], weights, rtol=1e-4, atol=1e-5)

    def test_one_rank_that_is_told_to_stop_stops_all_and_they_go_on_alone(self, world: World, reference: Reference):
        step = 10 if world.size > 1 else STOP_AT  # several ask each other every ten steps
        for seen in world.seen("stopped"):
            assert seen["ended"].startswith(f"SIGTERM: saved at step {step}")
        config = {**reference.lab.config("documents")}
        api.train(config, overrides({}), name="stopped", runs_dir=world.lab.runs, quiet=True)
        theirs = [row["loss"] for row in reference.rows("gpt", "train")]
        assert [row["loss"] for row in world.rows("stopped", "train")] == pytest.approx(theirs, rel=1e-5)

    def test_nothing_else_is_exchanged_in_a_step(self, world: World):
        for seen in world.seen("counted"):
            found = [Counter(names) for names in seen["collectives"]]
            assert found == [self.collectives[min(world.size, 2)]] * 2

    def test_a_rank_holds_its_part_and_no_more(self, world: World):
        """AdamW in fp32: 4 bytes a weight for it, 4 for its gradient and 8 for the averages, over those who share."""
        shares = self.held_by(world.size)
        for seen in world.seen("weighed"):
            for part, times in (("weights", 1), ("gradients", 1), ("optimizer", 2)):
                assert seen[part] == pytest.approx(times * seen["all_weights"] / shares, rel=0.05), part

    def held_by(self, world: int) -> int:
        """How many ranks hold a copy of the model together."""
        return 1

    def test_weights_that_went_apart_are_noticed_and_not_saved(self, world: World):
        if not self.has_replicas or world.size == 1:
            assert {seen["ended"] for seen in world.seen("flipped")} == {"finished"}
            return
        for seen in world.seen("flipped"):
            assert seen["ended"].startswith(
                f"at step 10 the weights of rank {world.size - 1} differ from those of the other ranks"
            )
        assert world.lab.steps_saved("flipped") == [5]


class OwnStepCases(StrategyCases):
    """Of strategies whose steps are ours, and no engine's."""

    def test_sums_of_gradients_are_exact_unless_bf16_is_asked_for(self, world: World, reference: Reference):
        """In the first step, where the weights are still the same; one process adds nothing up. Shards add up in
        another order, which costs a few roundings of 6e-8, depending on the machine's kernels; bf16 costs over 1e-6."""
        exact = reference.rows("gpt", "train")
        assert world.rows("gpt", "train")[0]["grad_norm"] == pytest.approx(exact[0]["grad_norm"], rel=1e-6)
        rounded = world.rows("bf16_sums", "train")
        is_other = abs(rounded[0]["grad_norm"] / exact[0]["grad_norm"] - 1) > 1e-6
        assert is_other == (world.size > 1)
        assert rounded[0]["grad_norm"] == pytest.approx(exact[0]["grad_norm"], rel=2**-8)
        assert [row["loss"] for row in rounded] == pytest.approx([row["loss"] for row in exact], rel=2e-2)

    def test_rows_say_how_long_each_rank_computes(self, world: World):
        rows = [row for row in world.rows("gpt", "train") if "rank_seconds" in row]
        assert bool(rows) == (world.size > 1)
        for row in rows:
            assert sorted(row["rank_seconds"]) == [str(rank) for rank in range(world.size)]
            assert all(seconds > 0 for seconds in row["rank_seconds"].values())
