"""Whoever pipes into `head -1` has read enough: a command whose output nobody reads any more ends without a word."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from tests import forked
from tests.conftest import quick

COMMANDS = [
    ["--version"],
    ["--help"],
    ["train", "--help"],
    ["explain", "beta2"],
    ["explain", "gpt-tiny", "--json"],
    ["plan", "gpt-tiny"],
    ["plan", "gpt-tiny", "--json"],
    ["doctor", "run"],
    ["compare", "run", "again"],
    ["data", "text.txt"],
    ["generate", "run", "a"],
    ["predict", "run", "text.txt", "--json"],
    ["train", "gpt-tiny", "data.source=text.txt", "--dry-run"],
    ["tune", "gpt-tiny", "--for-batch", "64"],
]

QUICK = (COMMANDS[1], COMMANDS[6], COMMANDS[7], COMMANDS[9], COMMANDS[11])  # one of each way to print


@pytest.fixture(scope="module", autouse=True)
def two_runs(trained) -> None:
    shutil.copytree("runs/run", "runs/again")


def into_a_closed_pipe(*arguments: str) -> tuple[int, str]:
    """A new Python writes the help; what imports torch is forked."""
    start = subprocess.Popen if "--help" in arguments else forked.Popen
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "trainbook", *arguments]
        with start(command, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
            said = process.communicate()[1]
    finally:
        os.close(writing)
    return process.returncode, said


@pytest.mark.parametrize("arguments", quick(COMMANDS, *QUICK), ids=" ".join)
def test_a_command_whose_output_nobody_reads_ends_quietly_as_by_sigpipe(trained, arguments: list[str]):
    assert into_a_closed_pipe(*arguments) == (141, "")


def test_a_mistake_is_still_one_where_nobody_reads(trained):
    code, said = into_a_closed_pipe("explain", "no_such_knob")
    assert code == 2 and "no_such_knob" in said


def test_training_goes_on_where_nobody_reads(trained):
    assert into_a_closed_pipe("train", *trained.tiny, "--name", "unread") == (0, "")
