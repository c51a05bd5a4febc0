"""Clipping and number types through the real loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.conftest import slow

from trainbook.loop.step import train_step

BRIEF = (
    "training.max_steps=34",
    "evaluation.eval_steps=34",
    "logging.logging_steps=1",
    "batch.max_grad_norm=null",
    "guard.skip_threshold=null",  # only what is not finite is skipped: the rest is for clipping
)
ZCLIP = (*BRIEF, "batch.clipping=zclip")


def disturbed(lab, factors: dict[int, float]) -> Any:
    """The losses of these steps, and so their gradients, are so many times as large."""

    def disturb(number: int, state: Any, step: Callable[[], Any]) -> Any:
        healthy, factor = state.losses, factors.get(number, 1.0)
        state.losses = lambda batch: {name: total * factor for name, total in healthy(batch).items()}
        try:
            return step()
        finally:
            state.losses = healthy

    return lab.around_step(disturb)


def test_zclip_clips_the_outliers_of_a_run_once_it_knows_25_updates(lab):
    with disturbed(lab, {10: 50.0, 30: 50.0, 32: 500.0}):
        lab.train(*ZCLIP, name="adaptive")
        lab.train(*BRIEF, name="plain")
    clipped = [row["step"] for row in lab.rows("adaptive") if row["clipped"]]
    assert set(clipped) >= {30, 32} and min(clipped) > 25
    assert not any(row["clipped"] for row in lab.rows("plain"))
    norms = [[row["grad_norm"] for row in lab.rows(name)] for name in ("adaptive", "plain")]
    assert norms[0][:30] == norms[1][:30], "the norm is logged as it was before clipping"
    assert norms[0][29] > 10 and norms[0][30:] != norms[1][30:]


@pytest.mark.parametrize(("compute", "cut"), [slow("fp32", 13), slow("fp32", 31), slow("fp16", 13), ("fp16", 31)])
def test_an_interrupted_run_with_poisoned_steps_keeps_its_bound_bit_for_bit(lab, compute: str, cut: int):
    overrides = (*ZCLIP, f"precision.compute={compute}")
    with disturbed(lab, {7: math.nan, 28: math.nan, 30: 20.0, 33: 50.0}):
        lab.train(*overrides, name="whole")
        with lab.interrupted_at(cut):
            lab.train(*overrides, name="cut")
        assert lab.train(*overrides, name="cut").ended == "finished"
    lab.must_be_equal("whole", "cut")
    assert [row["clipped"] for row in lab.rows("cut") if row["step"] in (29, 30, 33)] == [0, 1, 1]
    kept = lab.state("whole")["precision"]["zclip"]
    assert kept["seen"] == 34 and torch.isfinite(kept["mean"]) and kept["mean"] > 0


def test_norms_of_a_bf16_run_are_saved_in_fp32_and_have_moved(lab):
    lab.train(*BRIEF, "precision.weights=bf16", "optimizer.learning_rate=3e-4", "schedule.type=constant", name="narrow")
    model = lab.state("narrow")["model"]
    norms = {name: value for name, value in model.items() if "norm" in name}
    assert norms and {value.dtype for value in norms.values()} == {torch.float32}
    assert {value.dtype for name, value in model.items() if name not in norms} == {torch.bfloat16}
    assert all(((value - 1).abs() > 1e-3).float().mean() > 0.5 for value in norms.values())


def test_independent_decay_is_taken_from_the_schedule(lab):
    """One update on matrices, compared with a run that does not decay: weights differ by decay x share."""
    name, found = "body.blocks.0.feed_forward.up.weight", {}
    for decay in (0.0, 0.01):
        mode = ("optimizer.weight_decay_mode=independent", f"optimizer.weight_decay={decay}")
        job = lab.build(*mode, "precision.compute=fp32")
        before = job.state.task.get_parameter(name).detach().clone()
        train_step(job.state, next(job.feed(0, 1)))
        found[decay] = job.state.task.get_parameter(name).detach()
    # The first update of a warm-up of three is at a quarter of the peak.
    torch.testing.assert_close(found[0.0] - found[0.01], 0.01 * 0.25 * before, rtol=1e-3, atol=1e-8)
