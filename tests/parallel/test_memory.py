from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.conftest import Lab

from trainbook.errors import OutOfMemory, RunError
from trainbook.knobs.sections.distributed import DistributedKnobs
from trainbook.loop.oom_retry import OutOfMemoryRetry
from trainbook.loop.shortage import Shortage, shortages_in
from trainbook.parallel import RankEnv, Ranks
from trainbook.parallel.ddp import DataParallel
from trainbook.parallel.fsdp import FullyShard


def test_a_rank_that_runs_out_of_memory_says_which_and_ends(lab: Lab):
    """The others wait for it in the middle of the same step: a second try by itself would never meet them."""
    job = lab.build()
    job.state.strategy.ranks = Ranks(RankEnv(rank=3, world=4))
    memory = OutOfMemoryRetry(job, cast(Any, None), cast(Any, None))

    def fail() -> None:
        raise torch.OutOfMemoryError("no more")

    with pytest.raises(RunError, match=r"^rank 3: the GPU ran out of memory at step 1\. Saved checkpoints are kept\."):
        memory.attempt(fail)
    with pytest.raises(RunError, match=r"^rank 3: the GPU ran out of memory in an evaluation\."):
        memory.evaluate(fail)


@pytest.mark.parametrize("strategy", [DataParallel, FullyShard])
def test_a_step_is_not_tried_again_where_something_of_it_is_left(lab: Lab, strategy: type, tmp_path: Path):
    """One process alone: DDP's reducer and FSDP2 keep what a failed pass has left behind, and would add it up."""
    job, file = lab.build("batch.per_device_train_batch_size=4"), tmp_path / "shortage.json"
    job.state.strategy = strategy(Ranks(RankEnv()), DistributedKnobs())
    memory = OutOfMemoryRetry(job, cast(Any, None), cast(Any, None), file)

    def fail() -> None:
        raise torch.OutOfMemoryError("no more")

    with pytest.raises(OutOfMemory, match="in batches of 2, with the same results"):
        memory.attempt(fail)


def test_a_rank_with_a_run_folder_leaves_the_smaller_size_there(lab: Lab, tmp_path: Path):
    """Whoever starts the ranks again goes on with it; both kinds are kept, the newest of each."""
    job, file = lab.build("batch.per_device_train_batch_size=4"), tmp_path / "shortage.json"
    job.state.strategy.ranks = Ranks(RankEnv(rank=3, world=4))
    memory = OutOfMemoryRetry(job, cast(Any, None), cast(Any, None), file)

    def fail() -> None:
        raise torch.OutOfMemoryError("no more")

    assert shortages_in(file) == []
    with pytest.raises(OutOfMemory, match=r"^rank 3 ran out of memory at step 1, with a micro-batch of 4\. Saved"):
        memory.attempt(fail)
    assert shortages_in(file) == [Shortage("training", step=1, rank=3, rows=2, rows_before=4)]
    with pytest.raises(OutOfMemory, match=r"^rank 3 ran out of memory in the evaluation after step 0"):
        memory.evaluate(fail)
    with pytest.raises(OutOfMemory, match="in batches of 1, with the same results"):
        memory.attempt(fail)
    assert [(each.kind, each.rows) for each in shortages_in(file)] == [("evaluation", 1), ("training", 1)]
    with pytest.raises(RunError, match=r"^rank 3: the GPU ran out of memory at step 1, with a batch of 1 sequence"):
        memory.attempt(fail)
    for shortage in shortages_in(file):
        fresh = lab.build("batch.per_device_train_batch_size=4")
        fresh.limit_rows(shortage.kind, shortage.rows)
        assert fresh.state.micro_batch == (1 if shortage.kind == "training" else 4)
        assert fresh.state.most_rows == (1 if shortage.kind == "training" else None)
    file.write_text("[{")
    assert shortages_in(file) == [], "it is met again"
