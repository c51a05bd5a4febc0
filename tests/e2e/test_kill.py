"""kill -9 at any moment costs nothing but time."""

from __future__ import annotations

import random
import signal
import time

import pytest
from tests.conftest import quick


@pytest.mark.parametrize("seed", quick(range(20), 0))
def test_a_killed_run_is_resumed_bit_for_bit(shell, whole, started, seed: int):
    draw = random.Random(seed)
    for attempt in range(5):  # a slow machine may let the run end before it is hit
        name = f"killed-{seed}-{attempt}"
        process = shell.start("train", *shell.small, "--name", name, "--quiet")
        started.append(process)
        alive = shell.wait_for_row(name, draw.randrange(0, 58), process)
        time.sleep(draw.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        if alive and process.returncode == -signal.SIGKILL:
            break
    assert process.returncode == -signal.SIGKILL, "the kill must come before the end"  # pyright: ignore
    assert max(shell.rows(name), default=0) < 60  # pyright: ignore
    again = shell.train(name, "--quiet")  # pyright: ignore
    assert again.returncode == 0, again.stderr
    shell.must_be_equal(whole, name)  # pyright: ignore


@pytest.mark.slow
def test_a_run_killed_again_and_again_is_the_same(shell, whole, started):
    draw = random.Random(99)
    kills = 0
    for step in (9, 25, 44):
        process = shell.start("train", *shell.small, "--name", "often", "--quiet", "data.num_workers=1")
        started.append(process)
        kills += shell.wait_for_row("often", step, process)
        time.sleep(draw.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    assert kills >= 2
    assert shell.train("often", "--quiet", "data.num_workers=1").returncode == 0
    shell.must_be_equal(whole, "often")
