from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
from tests.parallel.strategy_cases import OwnStepCases, Reference, StrategyCases, World, reference

__all__ = ["reference"]


class TestFullyShard(OwnStepCases):
    strategy: ClassVar = {"strategy": "fsdp"}
    models = ("gpt", "embeddings", "t5")
    has_replicas = False
    # Weights of the two blocks and of the rest are brought together for each of two micro-batches, those of blocks for
    # the backward pass again; gradients of the three are added up once (gloo does that by all_reduce). The others: the
    # number of targets, the losses, the norms.
    collectives: ClassVar = {1: {}, 2: {"gloo:all_gather": 10, "gloo:all_reduce": 6}}

    allowed = ("bf16_sums", "bf16_gathered", "each_batch", "weighed_each", "stable")

    def held_by(self, world: int) -> int:
        return world

    def test_an_optimizer_that_looks_at_whole_tensors_sees_them_over_ranks(self, world: World, reference: Reference):
        theirs, ours = ([row["loss"] for row in rows.rows("stable", "train")] for rows in (reference, world))
        assert ours == pytest.approx(theirs, rel=1e-5)
        plain = [row["loss"] for row in reference.rows("gpt", "train")]
        assert ours != pytest.approx(plain, rel=1e-4), "some update was shortened"

    def test_gradients_may_be_added_up_in_every_micro_batch(self, world: World, reference: Reference):
        theirs, ours = reference.rows("gpt", "train"), world.rows("each_batch", "train")
        assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], rel=1e-5)

    def test_then_only_slices_of_them_are_kept_between_micro_batches(self, world: World):
        for name, ranks in (("weighed", 1), ("weighed_each", world.size)):
            for seen in world.seen(name):
                assert seen["accumulated"] == pytest.approx(seen["all_weights"] / ranks, rel=0.05)

    def test_weights_may_be_brought_together_in_bf16(self, world: World, reference: Reference):
        """As near to one device as bf16 is by itself; the norms' weights are rounded as well, so they are not equal."""
        theirs, near, ours = (
            [row["loss"] for row in rows.rows(name, "train")]
            for rows, name in ((reference, "bf16"), (world, "bf16"), (world, "bf16_gathered"))
        )
        assert ours == pytest.approx(theirs, rel=2e-2)
        assert ours != near


@pytest.mark.slow
class TestHybridShard(StrategyCases):
    """Two copies of the model, each over two ranks."""

    strategy: ClassVar = {"strategy": "fsdp", "shard_over": 2}
    collectives: ClassVar = {2: {"gloo:all_gather": 10, "gloo:all_reduce": 9}}

    def held_by(self, world: int) -> int:
        return 2

    @pytest.fixture(scope="class", params=[4])
    @classmethod
    def world(
        cls, request: pytest.FixtureRequest, reference: Reference, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[World]:
        made = cls.make(request.param, reference, tmp_path_factory.mktemp("hybrid"))
        yield made
        made.processes.close()
