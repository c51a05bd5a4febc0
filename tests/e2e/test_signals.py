"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import time

import pytest


def stop(shell, started, command: tuple[str, ...], number: signal.Signals, name: str, step: int, **how: bool) -> int:
    """Send the signal once this step is written; the step at which the run stopped."""
    process = shell.start(*command, **how)
    started.append(process)
    assert shell.wait_for_row("run", step, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    stopped = max(shell.rows("run"))
    assert step <= stopped < 60
    assert f"{name}: finishing this step and saving; interrupt again to stop at once" in err
    assert f"{name}: saved at step {stopped}. To resume: trainbook resume runs/run" in err
    assert "Traceback" not in err
    run = shell.folder("run")
    assert (run.checkpoints / f"step-{stopped:08d}" / "complete.json").exists()
    assert (run.read_manifest().status, run.read_manifest().status_detail) == (
        "interrupted",
        f"{name}: saved at step {stopped}",
    )
    return stopped


def test_a_signal_saves_at_that_step_and_the_run_goes_on_bit_for_bit(shell, whole, started):
    first = stop(shell, started, ("train", *shell.small, "--name", "run"), signal.SIGINT, "Ctrl-C", 17, fresh=True)
    second = stop(shell, started, ("resume", "runs/run"), signal.SIGTERM, "SIGTERM", first + 5)
    again = shell.run("resume", "run")
    assert again.returncode == 0, again.stderr
    run = shell.folder("run")
    assert [event["step"] for event in run.events() if event["kind"] == "resume"] == [first, second]
    assert min(row["step"] for row in run.metrics("train") if row["segment"] == 2) == second + 1
    shell.must_be_equal(whole, "run")


def test_a_second_signal_stops_at_once_and_the_last_checkpoint_is_whole(shell, whole, started, slow_step):
    process = shell.start("train", *shell.small, "--name", "twice", "--quiet", program=slow_step(23))
    started.append(process)
    assert shell.wait_for_row("twice", 23, process)
    time.sleep(0.2)  # now it is in the step that takes a minute
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None, "the first one waits for the step"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "stopped at once; the last complete checkpoint is kept" in err
    assert shell.run("resume", "twice", "--quiet").returncode == 0
    resumed = [event["step"] for event in shell.folder("twice").events() if event["kind"] == "resume"]
    assert resumed == [21]
    shell.must_be_equal(whole, "twice")


BEFORE = """
import os, signal
import trainbook.loop.build as build
def interrupted(*_):
    os.kill(os.getpid(), signal.{name})
    import time; time.sleep(60)
build.build_data = interrupted
from trainbook.cli.main import run
run()
"""


@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_a_signal_before_the_first_step_leaves_nothing_behind(shell, name: str):
    ended = shell.run("train", *shell.small, "--name", "early", program=BEFORE.format(name=name))
    assert ended.returncode == 130
    assert ended.stderr == "interrupted before the first step: nothing was lost\n"
    assert not shell.folder("early").path.exists()


@pytest.mark.slow
def test_the_same_name_twice_at_once_is_refused(shell, whole, started, slow_step):
    process = shell.start("train", *shell.small, "--name", "busy", "--quiet", program=slow_step(3))
    started.append(process)
    assert shell.wait_for_row("busy", 3, process)
    second = shell.train("busy")
    assert second.returncode == 2
    assert f"runs/busy is in use by process {process.pid}" in second.stderr and "Traceback" not in second.stderr
    assert shell.folder("busy").read_manifest().status == "running"


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_end_the_run(shell):
    process = shell.start("train", *shell.small, "--name", "piped")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()  # as `| head -1` does
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None
    process.stderr.close()
    assert shell.folder("piped").read_manifest().status == "finished"
