"""Faults that are put in on purpose, as a user puts them in, and what the run makes of them."""

from __future__ import annotations

import signal
from typing import Any

import pytest


def injecting(*faults: str) -> list[str]:
    return [part for fault in faults for part in ("--inject", fault)]


def events(shell: Any, name: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in shell.folder(name).events(raw=True) if event["kind"] == kind]


def test_a_kind_that_does_not_exist_costs_a_second_and_leaves_nothing(shell):
    ended = shell.train("nowhere", *injecting("nan-gradiant@5"))
    assert ended.returncode == 2 and ended.stdout == "" and "Traceback" not in ended.stderr
    assert "Did you mean 'nan-gradient'?" in ended.stderr
    assert not shell.folder("nowhere").path.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "the run has a single process, so no rank can be named. Use nan-gradient@5, or start several"),
        (("--nproc", "2"), "the rank must be between 0 and 1, but got 2: the run has 2 processes."),
    ],
)
def test_a_rank_that_does_not_exist_is_refused_before_anything_is_started(
    shell, options: tuple[str, ...], message: str
):
    ended = shell.train("nowhere", *injecting("nan-gradient@5:rank=2"), *options)
    assert ended.returncode == 2 and ended.stdout == "" and "Traceback" not in ended.stderr
    assert message in " ".join(ended.stderr.split())
    assert not shell.folder("nowhere").path.exists()


def test_a_run_survives_bad_gradients_bad_samples_little_memory_and_bad_trackers(shell):
    faults = ("nan-gradient@5", "random-labels@12", "out-of-memory@9", "slow-tracker@20", "dead-tracker@20")
    ended = shell.train("survivor", *injecting(*faults))
    assert ended.returncode == 0, ended.stderr
    assert "injected faults: nan-gradient@5, " in ended.stdout
    run = shell.folder("survivor")
    manifest = run.read_manifest()
    assert manifest.status == "finished" and manifest.injected_faults == list(faults)
    assert sorted(event["fault"] for event in events(shell, "survivor", "inject")) == sorted(faults)
    assert 5 in [event["step"] for event in events(shell, "survivor", "skip")]
    assert [event["step"] for event in events(shell, "survivor", "oom")] == [9]
    assert run.metrics("train")[-1]["applied_updates"] == 60
    reasons = " ".join(event["reason"] for event in events(shell, "survivor", "tracker"))
    assert "dead-tracker@20: failed: ConnectionError" in reasons and "slow-tracker@20: did not finish" in reasons


@pytest.mark.slow
def test_a_killed_run_with_a_damaged_checkpoint_is_resumed_bit_for_bit(shell, whole):
    ended = shell.train("killed", "--quiet", *injecting("corrupt-checkpoint@14", "kill@18"))
    assert ended.returncode == -signal.SIGKILL
    assert [event["fault"] for event in events(shell, "killed", "inject")] == ["corrupt-checkpoint@14", "kill@18"]
    again = shell.run("resume", "killed", "--quiet")
    assert again.returncode == 0, again.stderr
    assert [event["step"] for event in events(shell, "killed", "checkpoint_damaged")] == [14]
    assert [event["step"] for event in events(shell, "killed", "resume")] == [7]
    shell.must_be_equal(whole, "killed")
