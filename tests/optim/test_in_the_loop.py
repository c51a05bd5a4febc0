"""Each optimizer through the real loop: resumed to the bit, unhurt by a poisoned step, in every precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tests.conftest import needs, quick, slow

pytestmark = needs("bitsandbytes")

KINDS = {
    "adamw": (),
    "adamw_8bit": ("model.hidden_size=64",),  # matrices of 4,096 numbers and more
    "paged_adamw_8bit": ("model.hidden_size=64",),
    "stable_adamw": ("batch.max_grad_norm=null",),
    "lion": ("optimizer.learning_rate=1e-3", "optimizer.weight_decay=1.0"),
    "muon": ("model.activation=swiglu",),
    "sgd": ("optimizer.learning_rate=0.3",),
}
some_kinds = pytest.mark.parametrize("kind", quick(KINDS, "adamw", "muon"))
BRIEF = ("training.max_steps=8", "evaluation.eval_steps=8", "schedule.warmup_steps=2", "model.dropout=0.1")


def overrides(kind: str, *more: str) -> tuple[str, ...]:
    return (f"optimizer.type={kind}", *KINDS[kind], *BRIEF, *more)


@pytest.mark.parametrize("kind", quick(KINDS, "lion", "adamw_8bit"))
def test_an_interrupted_run_with_a_poisoned_step_continues_bit_for_bit(lab, kind: str):
    with lab.poisoned_at(3, 6):
        lab.train(*overrides(kind), name="whole")
        with lab.interrupted_at(5):
            lab.train(*overrides(kind), name="cut")
        assert lab.train(*overrides(kind), name="cut").ended == "finished"
    lab.must_be_equal("whole", "cut")
    assert lab.rows("cut")[-1]["skipped_updates"] == 2
    assert lab.rows("whole")[-1]["loss"] < lab.rows("whole")[0]["loss"]


@some_kinds
@pytest.mark.parametrize("precision", ["precision.weights=bf16", slow("precision.compute=fp16")])
def test_16_bit_numbers_are_trained_by_each_and_resumed_to_the_bit(lab, kind: str, precision: str):
    lab.train(*overrides(kind, precision), name="whole")
    with lab.interrupted_at(4):
        lab.train(*overrides(kind, precision), name="cut")
    lab.train(*overrides(kind, precision), name="cut")
    lab.must_be_equal("whole", "cut")
    rows = lab.rows("whole")
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_the_matrices_of_our_models_are_told_apart_for_muon(lab):
    groups = lab.build("optimizer.type=muon", "model.activation=swiglu").state.optimizer.param_groups
    parts = dict(zip(groups[0]["names"], groups[0]["row_parts"], strict=True))
    assert parts == {
        "body.blocks.0.attention.query_key_value.weight": [16, 16, 16],
        "body.blocks.0.attention.output.weight": [16],
        "body.blocks.0.feed_forward.up.weight": [64, 64],
        "body.blocks.0.feed_forward.down.weight": [16],
    }


def distinct(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tied tensors once, plain numbers not at all."""
    return list({value.data_ptr(): value for value in values if isinstance(value, torch.Tensor)}.values())


@pytest.mark.slow
def test_8_bit_averages_train_as_well_as_32_bit_ones(lab):
    losses, bytes_each = {}, {}
    for kind in ("adamw", "adamw_8bit"):
        lab.train(
            f"optimizer.type={kind}",
            "optimizer.learning_rate=1e-3",
            "model.hidden_size=64",
            "batch.global_batch_size=16",
            "training.max_steps=300",
            "evaluation.eval_steps=300",
            "evaluation.eval_max_samples=null",
            "logging.logging_steps=50",
            name=kind,
        )
        losses[kind] = lab.rows(kind, "eval")[-1]["loss"]
        state = lab.state(kind)
        kept = distinct(value for entry in state["optimizer"].values() for value in entry.values())
        parameters = sum(tensor.numel() for tensor in distinct(state["model"].values()))
        bytes_each[kind] = sum(tensor.nbytes for tensor in kept) / parameters
    assert losses["adamw_8bit"] == pytest.approx(losses["adamw"], rel=0.01)
    assert losses["adamw"] < 2.0
    assert 8.0 <= bytes_each["adamw"] < 8.1
    assert bytes_each["adamw_8bit"] < 2.3  # positions and norms are below 4,096 numbers here, and keep 32 bits
