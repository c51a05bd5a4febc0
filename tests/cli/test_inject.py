"""`--inject`: faults that are put in on purpose."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from trainbook.loop.faults.kinds import KINDS
from trainbook.runs import RunFolder


@pytest.mark.parametrize("verb", ["train", "resume"])
def test_help_lists_every_kind(terminal, verb: str):
    shown = re.sub(r"[\s│]+", "", terminal(verb, "--help").stdout)
    assert "KIND@STEP" in shown
    assert all(kind.replace("-", "") in shown.replace("-", "") for kind in KINDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nan-gradiant@5", "Did you mean 'nan-gradient'?"),
        ("nan-gradient@0", "the step must be an integer >= 1, but got '0'."),
        ("nan-gradient", "must be KIND@STEP"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_mistake_is_exit_code_2_and_leaves_no_run(terminal, text: str, message: str, more: tuple[str, ...]):
    answer = terminal.train("--inject", text, *more, code=2)
    assert answer.stderr.startswith(f"error: inject  {text}: ") and message in answer.stderr
    assert not Path("runs").exists()


def test_the_run_says_so_and_its_manifest_and_json_list_them(terminal):
    lines = terminal.train("--name", "seen", "--inject", "nan-gradient@5").stdout.splitlines()
    announced = next(at for at, line in enumerate(lines) if "injected faults: nan-gradient@5" in line)
    assert announced < next(at for at, line in enumerate(lines) if line.startswith("step      1/"))
    assert any(line.startswith("inject      5  nan-gradient@5: one value") for line in lines)

    faults = ("--inject", "nan-gradient@5", "--inject=exploding-gradient@3")
    answer = json.loads(terminal.train("--name", "told", "--json", *faults).stdout)
    assert answer["injected_faults"] == ["nan-gradient@5", "exploding-gradient@3"]
    run = RunFolder("runs/told")
    assert run.read_manifest().injected_faults == answer["injected_faults"]
    assert [event["fault"] for event in run.events() if event["kind"] == "inject"] == [
        "exploding-gradient@3",
        "nan-gradient@5",
    ]
    assert json.loads(terminal.train("--name", "clean", "--json").stdout)["injected_faults"] == []


def test_a_resumed_run_can_be_given_faults_of_its_own(terminal):
    terminal.train("--name", "first", "--quiet")
    terminal("resume", "first", "training.max_steps=12", "--accept-changes", "--quiet", "--inject", "nan-gradient@10")
    events = RunFolder("runs/first").events()
    assert [event["step"] for event in events if event["kind"] == "inject"] == [10]
