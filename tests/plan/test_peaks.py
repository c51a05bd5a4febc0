"""The highest moment of a step on paper, against every tensor that the step really makes (see following.py)."""

from __future__ import annotations

import pytest
from tests.plan.following import peak_of_step

from trainbook.knobs import Config, load
from trainbook.plan import DeviceLayout, MemoryForecast, memory, network
from trainbook.plan.states import lost_to_rounding, rounding_bytes
from trainbook.plan.types import types_of

SMALL = ("model.hidden_size=256", "model.num_attention_heads=4", "model.num_hidden_layers=4", "data.max_seq_length=256")
ROWS = 8
GPT = ("gpt2-124m", 8000, (*SMALL,))
LLAMA = ("llama-1b", 8000, (*SMALL, "model.num_key_value_heads=2", "model.intermediate_size=704"))
BERT = ("bert-base", 8000, (*SMALL, "model.intermediate_size=1024"))
T5 = ("t5-base", 8000, (*SMALL, "model.head_width=64", "model.intermediate_size=1024", "data.max_target_length=64"))
OFF, SELECTIVE, FULL = (f"memory.gradient_checkpointing={how}" for how in ("off", "selective", "full"))
NARROW = ("precision.weights=bf16", "optimizer.beta2=0.99")

CASES = {
    "gpt": (GPT, ()),
    "gpt fp32": (GPT, ("precision.compute=fp32",)),
    "gpt with 16-bit weights": (GPT, NARROW),
    "gpt with dropout": (GPT, ("model.dropout=0.1",)),
    "gpt recomputed selectively": (GPT, (SELECTIVE,)),
    "gpt recomputed in full": (GPT, (FULL,)),
    "gpt that accumulates": (GPT, ("batch.global_batch_size=16",)),
    "gpt in fp8": (GPT, ("precision.compute=bf16", "precision.products=fp8")),
    "gpt smoothed": (GPT, ("training.label_smoothing=0.1",)),
    "gpt with z-loss": (GPT, ("training.z_loss=1e-4",)),
    "gpt capped": (GPT, ("model.logit_soft_cap=30",)),
    "gpt with sgd": (GPT, ("optimizer.type=sgd",)),
    "llama": (LLAMA, (OFF,)),
    "llama with normalized heads": (LLAMA, (OFF, "model.qk_norm=true")),
    "gpt with embedding skips": (GPT, ("model.embedding_skip=true",)),
    "gpt with embedding skips recomputed in full": (GPT, ("model.embedding_skip=true", FULL)),
    "gpt with embedding skips and 16-bit weights": (GPT, ("model.embedding_skip=true", *NARROW)),
    "gpt with value embeddings": (GPT, ("model.value_embeddings=alternate",)),
    "gpt with value embeddings recomputed in full": (GPT, ("model.value_embeddings=alternate", FULL)),
    "gpt with value embeddings and 16-bit weights": (GPT, ("model.value_embeddings=alternate", *NARROW)),
    "llama with value embeddings": (LLAMA, (OFF, "model.value_embeddings=alternate")),
    "llama recomputed selectively, with 16-bit weights": (LLAMA, (SELECTIVE, "precision.weights=bf16")),
    "bert": (BERT, ()),
    "bert recomputed in full": (BERT, (FULL,)),
    "t5": (T5, ()),
    "t5 in fp16": (T5, ("precision.compute=fp16",)),
    "t5 recomputed selectively": (T5, (SELECTIVE,)),
}


def config_of(model: tuple[str, int, tuple[str, ...]], *knobs: str) -> tuple[Config, int]:
    name, vocab_size, sizes = model
    batch = (f"batch.per_device_train_batch_size={ROWS}",)
    if not any(knob.startswith("batch.") for knob in knobs):
        batch = (*batch, f"batch.global_batch_size={ROWS}")
    fixed = ("memory.compile=off", "guard.enabled=false", "evaluation.eval_strategy=no")
    return load(name, [*sizes, *batch, *fixed, *knobs]).config, vocab_size


def in_tensors(found: MemoryForecast) -> int:
    """Without what a GPU's libraries take, and what its allocator rounds up to."""
    return found.allocated - found.parts["workspace"] - found.parts["rounding"]


@pytest.mark.parametrize("case", CASES)
def test_the_highest_moment_is_that_of_a_real_step(case: str):
    model, knobs = CASES[case]
    config, vocab_size = config_of(model, *knobs)
    assert in_tensors(memory(config, vocab_size=vocab_size)) == pytest.approx(
        peak_of_step(config, vocab_size).bytes, rel=0.03
    )


@pytest.mark.parametrize("optimizer", ["lion", "sgd", "stable_adamw"])
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_where_an_update_is_the_highest_moment_its_copies_are_counted(optimizer: str, weights: str):
    """A model with few tokens: next to nothing is kept for the backward pass."""
    knobs = (f"optimizer.type={optimizer}", f"precision.weights={weights}", "data.max_seq_length=8")
    name, vocab_size, sizes = GPT
    model = (name, vocab_size, tuple(knob for knob in sizes if not knob.startswith("data.")))
    config, vocab_size = config_of(model, *knobs, "batch.global_batch_size=8")
    found, measured = memory(config, vocab_size=vocab_size), peak_of_step(config, vocab_size)
    assert (found.peak, measured.phase) == ("the update", "update")
    assert in_tensors(found) == pytest.approx(measured.bytes, rel=0.01)


@pytest.mark.parametrize("model", [GPT, LLAMA, T5], ids=["gpt", "llama", "t5"])
def test_where_a_block_is_the_highest_moment_its_gradients_are_counted(model: tuple[str, int, tuple[str, ...]]):
    """A small vocabulary, and blocks that are recomputed."""
    config, _ = config_of(model, FULL)
    found, measured = memory(config, vocab_size=64), peak_of_step(config, 64)
    assert in_tensors(found) == pytest.approx(measured.bytes, rel=0.05)


def test_what_pytorchs_allocator_deals_in():
    """As measured: feed-forward matrices of 1,280 x 5,120 cost GPT-2 774M 226 MB beyond their size."""
    mib = 2**20
    assert lost_to_rounding(1000) == 24 and lost_to_rounding(1024) == 0
    assert lost_to_rounding(4 * 1280 * 5120) == mib  # 25 of 26 MiB: what is left is too little for others
    assert lost_to_rounding(round(24.5 * mib)) == 0  # 1.5 MiB are not
    assert lost_to_rounding(4 * mib) == 0  # five of them fill 20 MiB
    assert lost_to_rounding(round(6.5 * mib)) == mib // 6  # three of them leave half a MiB, for all three
    config = load("gpt2-124m", ["model.num_hidden_layers=36", "model.hidden_size=1280", "model.num_attention_heads=20"])
    kept, gradients = rounding_bytes(
        config.config, network(config.config, 50_257), DeviceLayout("single", 1), types_of(config.config)
    )
    assert kept == 3 * gradients and gradients >= 72 * mib
