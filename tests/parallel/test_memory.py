from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from tests.conftest import Lab

from trainbook.errors import RunError
from trainbook.loop.memory import Memory
from trainbook.parallel import Place, Ranks


def test_a_rank_that_runs_out_of_memory_says_which_and_ends(lab: Lab):
    """The others wait for it in the middle of the same step: a second try by itself would never meet them."""
    job = lab.build().job
    job.state.strategy.ranks = Ranks(Place(rank=3, world=4))
    memory = Memory(job, cast(Any, None), cast(Any, None))

    def fail() -> None:
        raise torch.OutOfMemoryError("no more")

    with pytest.raises(RunError, match=r"^rank 3: the GPU ran out of memory at step 1\. Nothing saved is lost\."):
        memory.attempt(fail)
    with pytest.raises(RunError, match=r"^rank 3: the GPU ran out of memory in an evaluation\."):
        memory.evaluate(fail)
