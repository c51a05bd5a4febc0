from __future__ import annotations

from typing import Any, ClassVar, cast

import pytest
import torch
from tests.parallel.strategy_cases import OwnStepCases, Reference, World, reference

from trainbook.knobs.sections.distributed import DistributedKnobs
from trainbook.parallel import RankEnv, joined
from trainbook.parallel.ddp import mean_in

__all__ = ["reference"]


class TestDataParallel(OwnStepCases):
    strategy: ClassVar = {"strategy": "ddp"}
    models = ("gpt", "bert")
    # The number of targets, the gradients of this small model in one bucket, and the losses.
    collectives: ClassVar = {1: {"gloo:all_reduce": 1}, 2: {"gloo:all_reduce": 3}}
    allowed = ("bf16_sums", "bf16_weights")

    def test_gradients_of_16_bits_are_added_up_in_fp32(self, world: World, reference: Reference):
        theirs, ours = ([row["loss"] for row in rows.rows("bf16_weights", "train")] for rows in (reference, world))
        assert ours == pytest.approx(theirs, rel=2e-2)


class Bucket:
    def __init__(self, gradients: torch.Tensor) -> None:
        self.gradients = gradients

    def buffer(self) -> torch.Tensor:
        return self.gradients


@pytest.mark.parametrize("held", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sent", [torch.float32, torch.bfloat16])
def test_gradients_are_divided_in_the_wider_type_and_sent_in_the_asked_one(held: torch.dtype, sent: torch.dtype):
    gradients = torch.randn(50, generator=torch.Generator().manual_seed(0)).to(held)
    expected = (gradients.to(torch.promote_types(held, sent)) / 3).to(sent).to(held)
    with joined(RankEnv(), DistributedKnobs(strategy="ddp"), "cpu"):
        mean = mean_in((sent, 3), cast(Any, Bucket(gradients))).wait()
    assert mean.dtype == held and torch.equal(mean, expected)
    assert torch.equal(gradients, expected), "a bucket keeps its place"
