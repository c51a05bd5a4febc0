from __future__ import annotations

import pytest
import torch

from trainbook.knobs import Config, load
from trainbook.models import named_roles
from trainbook.optim import build_optimizer, parameter_groups
from trainbook.plan import H100, H200, held_states, layout, memory, network
from trainbook.plan.machines import DeviceLayout
from trainbook.plan.memory import BACKWARD, BESIDES, EVALUATION, FIRST, LAST, LOGITS, SNAPSHOT, UPDATE
from trainbook.plan.network import Network, Weight
from trainbook.plan.types import Types, types_of
from trainbook.roles import Kind
from trainbook.tasks import Facts, task_class

BASE = {
    "data": {"source": "text", "max_seq_length": 32},
    "model": {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3},
    "batch": {"global_batch_size": 64},
    "training": {"max_steps": 1},
}
VOCAB = 300
# Rajbhandari et al. 2020: 16-bit weights and gradients, and 12 bytes of fp32 weights and averages.
MIXED = Types(kept=2, norms=2, computed=2, stream=2, reduced=2, gathered=2, states=4, master=4)


def config_with(*knobs: str) -> Config:
    return load(BASE, knobs).config


def held(config: Config, devices: int = 1) -> dict[str, int]:
    return held_states(config, network(config, VOCAB), layout(config, devices), types_of(config))


@pytest.mark.parametrize(
    "knobs",
    [
        (),
        ("optimizer.type=stable_adamw",),
        ("optimizer.type=lion",),
        ("optimizer.type=muon",),
        ("optimizer.type=sgd",),
        ("optimizer.type=sgd", "optimizer.momentum=0"),
        ("optimizer.type=adamw_8bit",),
        ("precision.weights=bf16",),
        ("precision.weights=bf16", "optimizer.type=stable_adamw"),
    ],
    ids=lambda knobs: " ".join(knobs) or "adamw",
)
def test_weights_and_optimizer_state_are_those_of_the_built_ones(knobs: tuple[str, ...]):
    if "optimizer.type=adamw_8bit" in knobs:
        pytest.importorskip("bitsandbytes")
    config = config_with(*knobs)
    dtype = torch.bfloat16 if config.precision.weights == "bf16" else torch.float32
    task = task_class(config).build(config, Facts(VOCAB), torch.device("cpu"), dtype)
    optimizer = build_optimizer(
        parameter_groups(task, named_roles(task), config.optimizer), config.optimizer, torch.tensor(1e-3)
    )
    assert held(config)["weights"] == sum(weight.nbytes for weight in task.parameters())
    assert held(config)["gradients"] == held(config)["weights"]
    kept = [value for state in optimizer.state.values() for name, value in state.items() if not name.startswith("qmap")]
    assert held(config)["optimizer state"] == sum(
        value.nbytes for value in kept if isinstance(value, torch.Tensor) and value.ndim
    )


@pytest.mark.parametrize(("stage", "published"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_holds_what_its_paper_says(stage: int, published: float):
    """Figure 1: 7.5 billion parameters on 64 devices, in GB."""
    model = Network((), (Weight("all", (7_500_000_000,), Kind.HIDDEN),), 1, 1, 1, 1, 1, 1, gated=False, is_tied=False)
    who = DeviceLayout("deepspeed", 64, shards=64 if stage else 1, zero_stage=stage)
    assert sum(held_states(config_with(), model, who, MIXED).values()) / 1e9 == pytest.approx(published, abs=0.05)


def test_fsdp_deals_out_rows_and_the_first_rank_has_most():
    config = config_with("distributed.strategy=fsdp", "model.hidden_size=60")
    whole, part = held(config, 1)["weights"], held(config, 8)["weights"]
    assert whole / 8 <= part <= 1.05 * whole / 8
    assert held(config_with("distributed.strategy=fsdp", "distributed.shard_over=2"), 8) == held(
        config_with("distributed.strategy=fsdp"), 2
    )
    assert held(config_with("distributed.strategy=ddp"), 8) == held(config_with(), 1)


def test_offloaded_states_are_not_on_the_gpu():
    zero = ("distributed.strategy=deepspeed", "distributed.zero_stage=3")
    there, gone = config_with(*zero), config_with(*zero, "distributed.offload_optimizer=cpu")
    assert held(gone, 4) == {**held(there, 4), "optimizer state": 0, "gradients": 0}


@pytest.mark.parametrize("devices", [1, 4])
def test_of_offloaded_gradients_only_those_on_their_way_are_on_the_gpu(devices: int):
    """DeepSpeed keeps them beside the optimizer's state from stage 2 on; in stage 1 they are whole until the end."""

    def gradients(stage: int, moment: str) -> int:
        zero = ("distributed.strategy=deepspeed", f"distributed.zero_stage={stage}", "model.num_hidden_layers=12")
        config = config_with(*zero, "distributed.offload_optimizer=cpu", "batch.gradient_accumulation_steps=2")
        return memory(config, devices, vocab_size=VOCAB).moments[moment]["gradients"]

    whole = 4 * network(config_with("model.num_hidden_layers=12"), VOCAB).parameters
    assert gradients(1, UPDATE) == gradients(1, LOGITS) == whole
    for stage in (2, 3):
        assert gradients(stage, UPDATE) == gradients(stage, LOGITS) == 0
        assert 0 < gradients(stage, FIRST) < whole / 2  # a block's, as computed and as it is sent


def test_paged_averages_are_not_counted_as_the_gpus():
    plain, paged = (
        held(config_with(f"optimizer.type={kind}", "model.hidden_size=512"))
        for kind in ("adamw_8bit", "paged_adamw_8bit")
    )
    assert 0 < paged["optimizer state"] < 0.01 * plain["optimizer state"]


def test_the_highest_moment_counts_and_its_parts_add_up():
    found = memory(config_with(), vocab_size=VOCAB)
    assert set(found.moments) == {LOGITS, BACKWARD, FIRST, LAST, UPDATE, EVALUATION, SNAPSHOT}
    assert found.total == max(sum(parts.values()) for parts in found.moments.values()) == sum(found.parts.values())
    assert found.moments[LOGITS]["gradients"] == 0 < found.moments[LAST]["gradients"]
    assert "activations" not in found.moments[LAST]
    assert found.allocated == found.total - sum(found.parts[part] for part in BESIDES)


def test_accumulated_gradients_are_there_before_the_last_micro_batch():
    accumulating = "batch.gradient_accumulation_steps=4"
    for knobs, devices in (((), 1), (("distributed.strategy=fsdp",), 4)):
        config = config_with(accumulating, *knobs)
        # With fsdp they are whole: added up over ranks only once.
        whole = 4 * network(config, VOCAB).parameters
        assert memory(config, devices, vocab_size=VOCAB).moments[LOGITS]["gradients"] == whole
    each = config_with(accumulating, "distributed.strategy=fsdp", "distributed.sync_each_batch=true")
    assert memory(each, 4, vocab_size=VOCAB).moments[LOGITS]["gradients"] == held(each, 4)["gradients"]
    zero = config_with(accumulating, "distributed.strategy=deepspeed", "distributed.zero_stage=2")
    assert memory(zero, 4, vocab_size=VOCAB).moments[LOGITS]["gradients"] == held(zero, 4)["gradients"]


def test_whole_weights_are_a_few_blocks_or_all_of_them():
    def whole(*knobs: str) -> int:
        config = config_with("distributed.strategy=fsdp", "model.num_hidden_layers=12", *knobs)
        return memory(config, 4, vocab_size=VOCAB).moments[LOGITS]["whole weights"]

    config = config_with("model.num_hidden_layers=12")
    assert whole("distributed.reshard_after_forward=false") == 4 * network(config, VOCAB).parameters
    (_, rest), (count, block) = network(config, VOCAB).units()
    assert count == 12
    assert whole() == 4 * sum(weight.count for weight in (*rest, *block))
    half = whole("distributed.gather_dtype=compute", "precision.compute=bf16")
    assert half == 4 * sum(weight.count for weight in rest) + 2 * sum(weight.count for weight in block)


def test_rounded_copies_of_weights_are_kept_unless_blocks_are_recomputed_or_arrive_rounded():
    def rounded(*knobs: str, devices: int = 1) -> int:
        config = config_with("precision.compute=bf16", *knobs)
        return memory(config, devices, vocab_size=VOCAB).moments[LOGITS]["rounded weights"]

    model = network(config_with(), VOCAB)
    head = 2 * VOCAB * 64
    matrices = 2 * sum(weight.count * times for weight, times in model.grouped() if weight.multiplies)
    assert rounded() == matrices + head
    assert rounded("memory.gradient_checkpointing=full") == head
    fsdp = ("distributed.strategy=fsdp",)
    assert rounded(*fsdp, devices=4) == matrices + head
    assert rounded(*fsdp, "distributed.gather_dtype=compute", devices=4) == head
    assert rounded("precision.weights=bf16") == 0


def test_an_h200_has_room_for_what_an_h100_has_not():
    config = load("llama-1b", ["batch.per_device_train_batch_size=32"]).config
    found = memory(config, vocab_size=32_000)
    assert H100.memory < found.total < H200.memory
    assert found.fits(H200) and not found.fits(H100)
