"""Memory that runs out on one of several processes: all are started again, and go on in smaller parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # several processes, several times

# Without chance, which draws other numbers for other micro-batches. 4 rows at a time on each of 2 ranks.
EXACT = {"model.dropout": 0.0, "training.max_steps": 20, "logging.dense_steps": 20}
STEP = 10  # of the first one that is too large; the newest checkpoint is of step 7
# Rank 1 alone has too little memory, and only for rows that come in 3 or more, from this step on.
ON_ONE_RANK = """
import os
import torch
from trainbook.tasks.causal import CausalLanguageModel

class Short(CausalLanguageModel):
    calls = 0

    def forward(self, targets, **inputs):
        Short.calls += 1
        if os.environ["RANK"] == "1" and len(targets) > 2 and Short.calls > {calls}:
            raise torch.OutOfMemoryError("no more")
        return super().forward(targets, **inputs)
"""


def command(shell, name: str, *options: str, **settings: Any) -> list[str]:
    given = dict(each.split("=", 1) for each in shell.small[1:])
    chosen = {**given, **EXACT, **settings}
    overrides = [f"{path}={value}" for path, value in chosen.items()]
    return ["train", shell.small[0], *overrides, "--name", name, "--quiet", *options]


@pytest.fixture(scope="module")
def small_parts(shell) -> Callable[[str], str]:
    """The name of a run that had small micro-batches from its start, by its strategy."""

    @functools.cache
    def train(strategy: str) -> str:
        name = f"small-parts-{strategy}"
        how = {"distributed.strategy": strategy, "batch.gradient_accumulation_steps": 4}
        ended = shell.run(*command(shell, name, "--nproc", "2", **how))
        assert (ended.returncode, ended.stderr) == (0, "")
        return name

    return train


def must_have_gone_on(shell, name: str, like: str, rank: int | None = None) -> None:
    ours, theirs = shell.rows(name), shell.rows(like)
    assert ours.keys() == theirs.keys()
    for step, (loss, *_, tokens, _) in theirs.items():
        assert ours[step][0] == pytest.approx(loss, rel=1e-5), step
        assert ours[step][3] == tokens, "the global batch is the same"
    events = shell.folder(name).events(raw=True)
    (told,) = [event for event in events if event["kind"] == "oom"]
    assert (told["step"], told["rows_before"], told["rows"]) == (STEP, 4, 2)
    assert rank is None or told["rank"] == rank
    assert [event["step"] for event in events if event["kind"] == "resume"] == [7]
    assert not [event for event in events if event["kind"] == "failure"], "it is none of the run"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_are_started_again_in_smaller_parts(shell, small_parts: Callable[[str], str], strategy: str):
    name = f"short-{strategy}"
    options = ("--nproc", "2", "--inject", f"out-of-memory@{STEP}")
    ended = shell.run(*command(shell, name, *options, **{"distributed.strategy": strategy}))
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.endswith(
        f"ran out of memory at step {STEP}, with a micro-batch of 4. All ranks are restarted, in batches of 2, with "
        "the same results."
    )
    must_have_gone_on(shell, name, small_parts(strategy))
    again = shell.run("resume", name, "training.max_steps=24", "--accept-changes", "--nproc", "2", "--quiet")
    assert (again.returncode, again.stderr) == (0, "")
    assert len([event for event in shell.folder(name).events(raw=True) if event["kind"] == "oom"]) == 1


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_rank_is_enough(shell, small_parts: Callable[[str], str], strategy: str):
    """The others wait for it in the middle of the step."""
    (shell.root / "short_of_memory.py").write_text(ON_ONE_RANK.format(calls=2 * (STEP - 1)))
    environment = {"PYTHONPATH": f"{shell.root}:{shell.environment['PYTHONPATH']}"}
    name = f"short-on-one-{strategy}"
    how = {"training.task": "short_of_memory:Short", "distributed.strategy": strategy}
    ended = shell.run(*command(shell, name, "--nproc", "2", **how), environment=environment)
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"rank 1 ran out of memory at step {STEP}")
    must_have_gone_on(shell, name, small_parts(strategy), rank=1)


def test_without_a_launcher_the_message_says_how_to_go_on(shell):
    """Under torchrun, Slurm or Kubernetes, whoever starts the run again finds it smaller."""
    from tests.parallel.world import environment, free_port

    port, name = free_port(), "short-alone"
    arguments = command(shell, name, "--inject", f"out-of-memory@{STEP}")
    processes = [shell.start(*arguments, environment=_place(environment(rank, 2, port))) for rank in range(2)]
    ends = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [1, 1]
    for rank, (_, err) in enumerate(ends):
        assert err.endswith(
            f"error: rank {rank} ran out of memory at step {STEP}, with a micro-batch of 4. Saved checkpoints are "
            "kept. Resume the run: it continues from its newest checkpoint, in batches of 2, with the same results.\n"
        )
    again = shell.run("resume", name, "--nproc", "2", "--quiet")
    assert (again.returncode, again.stderr) == (0, "")
    (told,) = [event for event in shell.folder(name).events(raw=True) if event["kind"] == "oom"]
    assert told["rows"] == 2


def _place(environment: dict[str, str]) -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {name: environment[name] for name in names}
