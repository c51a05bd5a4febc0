"""What only a GPU can show: no wait in a step, the same bits twice, and real memory that runs out."""

from __future__ import annotations

import gc

import pytest
import torch
from tests.conftest import Lab

pytestmark = pytest.mark.gpu

ON_GPU = ("training.device=cuda", "training.max_steps=60", "batch.global_batch_size=8", "logging.dense_steps=0")
LARGE = (*ON_GPU, "model.num_hidden_layers=4", "model.hidden_size=256", "model.num_attention_heads=4")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_judging_and_updating_never_wait_for_the_device(lab: Lab):
    """Of native optimizers; those of bitsandbytes read one flag a step."""
    from trainbook.loop.step import train_step

    for optimizer in ("adamw", "stable_adamw", "lion", "muon", "sgd"):
        more = ("optimizer.weight_decay=0",) if optimizer == "sgd" else ()
        job = lab.build(*LARGE, f"optimizer.type={optimizer}", *more, "data.pin_memory=true")
        batches = job.feed(0, 20)
        for _ in range(10):  # what is made at first use may wait
            train_step(job.state, next(batches))
        try:
            torch.cuda.set_sync_debug_mode("error")
            for _ in range(10):
                train_step(job.state, next(batches))
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_a_deterministic_run_repeats_its_bits_also_after_a_kill(lab: Lab, compute: str):
    overrides = (*LARGE, "training.deterministic=true", f"precision.compute={compute}", "checkpoint.save_steps=20")
    lab.train(*overrides, name="once")
    lab.train(*overrides, name="twice")
    with lab.crashing_at(45):
        lab.train(*overrides, name="killed")
    lab.train(*overrides, name="killed")
    for other in ("twice", "killed"):
        lab.must_be_equal("once", other)


@pytest.mark.parametrize(("compute", "room", "bound"), [("fp32", 1.0e9, 1e-5), ("bf16", 0.6e9, 2e-2)])
def test_memory_that_runs_out_ends_with_the_losses_of_smaller_parts(lab: Lab, compute: str, room: float, bound: float):
    overrides = (
        *("training.device=cuda", "training.max_steps=12", "batch.global_batch_size=64", "data.max_seq_length=256"),
        *("model.num_hidden_layers=4", "model.hidden_size=512", "model.num_attention_heads=8", "precision.tf32=false"),
        *(f"precision.compute={compute}", "evaluation.eval_steps=12", "memory.compile=off"),
        *("optimizer.learning_rate=1e-3",),
    )
    lab.text.write_text(lab.text.read_text() * 40)
    total = torch.cuda.get_device_properties(0).total_memory
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room) / total)
    try:
        lab.train(*overrides, name="limited")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    events = lab.events("oom", "limited")
    assert events and all("the same global batch" in event["reason"] or "host" in event["reason"] for event in events)
    fitting = min(event["rows"] for event in events if "rows_before" in event)
    lab.train(*overrides, f"batch.per_device_train_batch_size={fitting}", name="small")
    losses = [[row["loss"] for row in lab.rows(name)] for name in ("limited", "small")]
    print("micro-batch", fitting, "largest difference", max(abs(a - b) for a, b in zip(*losses, strict=True)))
    assert losses[0] == pytest.approx(losses[1], abs=bound)
