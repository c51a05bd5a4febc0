from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Lab
from tests.parallel.world import run_world
from tests.plan import counting

from trainbook.knobs import Config, load
from trainbook.plan import H100, held_states, layout, network, traffic
from trainbook.plan.traffic import Collective
from trainbook.plan.types import types_of

VOCAB = 257  # bytes and the end of a text: the tokenizer of small texts
SHARED = (
    "model.hidden_size=60",  # rows that 2 ranks cannot always share equally
    "model.num_hidden_layers=3",
    "batch.global_batch_size=8",
    "batch.gradient_accumulation_steps=2",
    "precision.compute=fp32",
    "training.max_steps=4",
    "schedule.warmup_steps=0",
    "logging.logging_steps=100",
    "logging.dense_steps=0",
    "guard.snapshot_steps=100",
    "evaluation.eval_steps=100",
    "checkpoint.save_steps=100",
)
STRATEGIES = {
    "ddp": ("distributed.strategy=ddp",),
    "fsdp": ("distributed.strategy=fsdp",),
    "each": ("distributed.strategy=fsdp", "distributed.sync_each_batch=true"),
    "kept": ("distributed.strategy=fsdp", "distributed.reshard_after_forward=false"),
}


class Counted:
    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        cases: list[dict[str, Any]] = [
            {"name": name, "config": self.lab.config(), "overrides": [*SHARED, *knobs], "count": [3]}
            for name, knobs in STRATEGIES.items()
        ]
        # DDP arranges its buckets in the second step; in the last one, a row is written.
        self.seen = {
            name: [rank["collectives"][0] for rank in ranks]
            for name, ranks in run_world(2, cases, folder, counting.run).items()
        }

    def config(self, name: str) -> Config:
        return load(self.lab.config(), [*SHARED, *STRATEGIES[name]]).config


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    return Counted(tmp_path_factory.mktemp("counted"))


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_exchanged_in_a_step_is_what_the_formula_says(counted: Counted, name: str):
    """By kind, in bytes, on two real ranks: fp32, two micro-batches."""
    expected: dict[str, float] = defaultdict(float)
    collectives = traffic(counted.config(name), 2, vocab_size=VOCAB).collectives
    for each in collectives:
        expected[each.kind] += each.size * each.times
    for seen in counted.seen[name]:
        found: dict[str, int] = defaultdict(int)
        for kind, numbers in seen["exchanged"]:
            found[kind] += 4 * numbers
        if name != "ddp":  # gloo adds up and scatters by adding up for all
            found["all_reduce"] -= found["reduce_scatter"]
        # Single numbers, such as losses, counts and norms of tensors, are not in the formula.
        few = found["all_reduce"] - expected["all_reduce"]
        assert 0 <= few <= 1000
        for kind in ("all_gather", "reduce_scatter"):
            assert found[kind] == pytest.approx(expected[kind], rel=1e-9), kind
            messages = sum(each == kind for each, _ in seen["exchanged"])
            assert messages == sum(each.times for each in collectives if each.kind == kind), kind


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_a_rank_holds_is_what_the_formula_says(counted: Counted, name: str):
    config = counted.config(name)
    held = held_states(config, network(config, VOCAB), layout(config, 2), types_of(config))
    first = counted.seen[name][0]["held"]
    assert first["weights"] == held["weights"]
    assert first["gradients"] == held["gradients"]
    assert first["optimizer"] == held["optimizer state"]


# On paper


def config_with(*knobs: str) -> Config:
    base = {"data": {"source": "text"}, "batch": {"global_batch_size": 512}, "training": {"max_steps": 1}}
    return load(base, ["batch.per_device_train_batch_size=1", *knobs]).config


def sent(*knobs: str, devices: int = 8) -> float:
    return traffic(config_with(*knobs), devices, vocab_size=VOCAB).sent


def test_ddp_sends_its_gradients_nearly_twice_and_once_an_update():
    bytes_of_all = 4 * network(config_with(), VOCAB).parameters
    assert sent("distributed.strategy=ddp") == pytest.approx(2 * 7 / 8 * bytes_of_all, rel=1e-9)
    assert sent("distributed.strategy=ddp", "distributed.reduce_dtype=bf16") == pytest.approx(
        sent("distributed.strategy=ddp") / 2, rel=1e-6
    )
    assert traffic(config_with(), 1, vocab_size=VOCAB).sent == 0


def test_fsdp_without_accumulation_sends_half_as_much_again_as_ddp():
    """Weights for both passes, and gradients. The embedding's weights stay from one pass to the next."""
    once = ("batch.global_batch_size=8",)
    fsdp, ddp = sent(*once, "distributed.strategy=fsdp"), sent(*once, "distributed.strategy=ddp")
    assert 1.4 * ddp < fsdp < 1.5 * ddp * 1.01


def test_zero_2_exchanges_gradients_in_each_micro_batch_and_zero_1_once():
    zero = ("distributed.strategy=deepspeed",)
    first, second, third = (sent(*zero, f"distributed.zero_stage={stage}") for stage in (1, 2, 3))
    whole = 7 / 8 * 4 * network(config_with(), VOCAB).parameters
    assert first == pytest.approx(2 * whole, rel=1e-6)
    assert second == pytest.approx((64 + 1) * whole, rel=1e-6)
    assert third == pytest.approx(3 * 64 * whole, rel=1e-6)


def adapted(*knobs: str) -> Config:
    """As with model.lora_rank, which wants a pretrained model: its shapes would be the same."""
    config = config_with(*knobs)
    return config.model_copy(update={"model": config.model.model_copy(update={"lora_rank": 4})})


def exchanged(config: Config, kind: str) -> int:
    """Bytes in an update."""
    return sum(each.size * each.times for each in traffic(config, 8, vocab_size=VOCAB).collectives if each.kind == kind)


def test_with_adapters_ddp_exchanges_the_gradients_of_what_is_trained_and_no_others():
    config = adapted("distributed.strategy=ddp")
    model = network(config, VOCAB)
    assert 0 < model.trained < 0.1 * model.parameters
    assert exchanged(config, "all_reduce") == 4 * model.trained
    whole = config_with("distributed.strategy=ddp")
    assert exchanged(whole, "all_reduce") == 4 * network(whole, VOCAB).parameters


def test_with_adapters_fsdp_gathers_all_weights_and_adds_up_the_gradients_of_what_is_trained():
    knobs = ("distributed.strategy=fsdp", "batch.global_batch_size=8")
    config, whole = adapted(*knobs), config_with(*knobs)
    units = network(config, VOCAB).units()
    trained = sum(count * each.cut(8) for count, unit in units for each in unit if not each.is_frozen)
    assert exchanged(config, "reduce_scatter") == 4 * 8 * trained
    assert exchanged(config, "all_gather") > exchanged(whole, "all_gather")  # adapters come on top
    assert all(each.size for each in traffic(config, 8, vocab_size=VOCAB).collectives)  # nothing of the rest is trained


def test_with_adapters_zero_sends_only_what_is_trained_but_for_the_weights_of_stage_3():
    for stage, sums in ((1, 1), (2, 64), (3, 64)):
        config = adapted("distributed.strategy=deepspeed", f"distributed.zero_stage={stage}")
        model = network(config, VOCAB)
        assert exchanged(config, "reduce_scatter") == 4 * sums * model.trained
        gathered = 2 * 64 * model.parameters if stage == 3 else model.trained
        assert exchanged(config, "all_gather") == 4 * gathered


def test_one_copy_for_each_machine_keeps_the_weights_inside():
    flat = traffic(config_with("distributed.strategy=fsdp"), 64, vocab_size=VOCAB)
    hybrid = traffic(config_with("distributed.strategy=fsdp", "distributed.shard_over=8"), 64, vocab_size=VOCAB)
    assert flat.between == pytest.approx(flat.sent / 8)
    assert {each.kind for each in hybrid.collectives if each.between} == {"all_reduce"}
    gradients = 4 * network(config_with(), VOCAB).parameters / 8
    assert hybrid.between == pytest.approx(2 * 7 / 8 * gradients, rel=0.01)
    assert hybrid.between < flat.between


def test_a_ring_over_machines_takes_as_long_as_its_slowest_wire():
    large = Collective("all_gather", "weights", "forward", 80 * 10**9, 1, ranks=64, per_machine=8)
    assert large.sent == pytest.approx(63 / 64 * 80e9)
    assert large.between == pytest.approx(large.sent / 8)
    wires = large.between / (H100.between * H100.bandwidth_share)
    assert large.seconds(H100) == pytest.approx(wires, rel=0.01)


def test_many_small_messages_cost_what_one_large_one_does_not():
    one = Collective("reduce_scatter", "gradients", "backward", 10**9, 1, ranks=512, per_machine=8)
    many = Collective("reduce_scatter", "gradients", "backward", 10**6, 1000, ranks=512, per_machine=8)
    assert many.sent == one.sent
    assert many.seconds(H100) > 100 * one.seconds(H100)
