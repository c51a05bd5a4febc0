from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from trainbook.data.batches.feed import prefetch
from trainbook.data.batches.filling import Batch
from trainbook.data.batches.plan import BatchPlan
from trainbook.data.samples.datasets import TokenWindows
from trainbook.data.samples.frame import Frame
from trainbook.errors import DataError, MissingExtra

# Newer Pythons warn of every fork in a process with threads, and torch has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def plan(tmp_path: Path) -> BatchPlan:
    np.arange(5000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    tokens = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    return BatchPlan(TokenWindows(tokens, Frame(16, shift=1), shuffle=True, seed=1), 8, seed=1, shuffle=True)


def as_tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {"tokens": torch.from_numpy(batch.tokens.values), "ids": torch.from_numpy(batch.ids)}


def fail_at_two(batch: Batch) -> int:
    if batch.step == 2:
        raise DataError("a.txt:7: this sample cannot be used")
    return batch.step


def fail_with_its_own_constructor(batch: Batch) -> int:
    raise MissingExtra("the collation", "nothing", "extra")


def test_workers_give_the_very_batches_of_the_plan_in_order(plan: BatchPlan) -> None:
    expected = [as_tensors(plan.batch(step, rank=1, world=2)) for step in range(5, 60)]
    for num_workers in (0, 2):
        given = list(prefetch(plan, as_tensors, 5, 60, num_workers=num_workers, rank=1, world=2))
        assert len(given) == len(expected)
        for one, two in zip(given, expected, strict=True):
            assert torch.equal(one["tokens"], two["tokens"])
            assert torch.equal(one["ids"], two["ids"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_was_prepared_and_not_taken_is_not_consumed(plan: BatchPlan, num_workers: int) -> None:
    feed = prefetch(plan, as_tensors, 0, 100, num_workers=num_workers, prefetch_factor=4)
    taken = [next(feed)["ids"] for _ in range(7)]
    feed.close()  # type: ignore[attr-defined]
    resumed = next(prefetch(plan, as_tensors, len(taken), 100, num_workers=num_workers))["ids"]
    assert torch.equal(resumed, as_tensors(plan.batch(7))["ids"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_feeding_leaves_the_global_random_state_alone(plan: BatchPlan, num_workers: int) -> None:
    before = torch.get_rng_state()
    list(prefetch(plan, as_tensors, 0, 3, num_workers=num_workers))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_keeps_its_type_and_message(plan: BatchPlan, num_workers: int) -> None:
    feed = prefetch(plan, fail_at_two, 0, 10, num_workers=num_workers)
    assert [next(feed), next(feed)] == [0, 1]
    with pytest.raises(DataError) as caught:
        next(feed)
    assert str(caught.value) == "a.txt:7: this sample cannot be used"
    with pytest.raises(MissingExtra, match=r"^the collation needs the package 'nothing'"):
        next(prefetch(plan, fail_with_its_own_constructor, 0, 10, num_workers=num_workers))


def test_a_feed_without_an_end_goes_on(plan: BatchPlan) -> None:
    feed = prefetch(plan, fail_at_two, 10**9)
    assert [next(feed) for _ in range(3)] == [10**9, 10**9 + 1, 10**9 + 2]


SENDER = "import os, sys; [os.kill(int(pid), int(number)) for pid in sys.argv[2:] for number in sys.argv[1].split(',')]"


def test_workers_outlive_signals_meant_for_the_main_process_and_end_with_the_feed(plan: BatchPlan) -> None:
    feed = prefetch(plan, as_tensors, 0, 1000, num_workers=2)
    next(feed)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    # From another process, as a terminal or a scheduler would send them.
    signals = f"{int(signal.SIGINT)},{int(signal.SIGTERM)}"
    subprocess.run([sys.executable, "-c", SENDER, signals, *(str(worker.pid) for worker in workers)], check=True)
    for step in range(1, 50):
        assert torch.equal(next(feed)["ids"], as_tensors(plan.batch(step))["ids"])
    assert all(worker.is_alive() for worker in workers)
    feed.close()  # type: ignore[attr-defined]
    for worker in workers:
        worker.join(timeout=10)
    assert not any(worker.is_alive() for worker in workers)


def test_a_worker_ends_when_the_main_process_says_so(plan: BatchPlan) -> None:
    feed = prefetch(plan, as_tensors, 0, 1000, num_workers=1)
    next(feed)
    (worker,) = multiprocessing.active_children()
    worker.terminate()
    worker.join(timeout=10)
    assert not worker.is_alive()


def test_the_main_process_still_hears_its_signals(plan: BatchPlan) -> None:
    next(prefetch(plan, as_tensors, 0, 10, num_workers=1))
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}


def test_a_process_that_fails_with_its_feed_open_still_exits(tmp_path: Path) -> None:
    program = """
import numpy as np
from trainbook.data.samples.datasets import TokenWindows
from trainbook.data.batches.feed import prefetch
from trainbook.data.samples.frame import Frame
from trainbook.data.batches.plan import BatchPlan
feed = prefetch(BatchPlan(TokenWindows(np.arange(500), Frame(8, shift=1)), 4, 0, True), len_of_ids, num_workers=2)
print(next(feed), flush=True)
raise SystemExit(3)
"""
    (tmp_path / "program.py").write_text("def len_of_ids(batch): return len(batch.ids)\n" + program)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "4\n", "")
