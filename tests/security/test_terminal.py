"""Escape sequences in names, files and texts that somebody handed over, through each verb, on a terminal."""

from __future__ import annotations

import errno
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import trainbook

# Sets a window's title; hides what follows; the same commands as one character each; turns the text around; a link.
COMMANDS = ("\x1b]0;", "\x07", "\x1b[8m", "\x9b", "\x9d", "\u202e", "\x1b]8")
HOSTILE = "\x1b]0;TITLE\x07\x1b[8mhidden\x9b2J\x9d\u202ex[link=http:]y[bold]"
SMALL = (
    "model.num_hidden_layers=1",
    "model.hidden_size=16",
    "model.num_attention_heads=1",
    "data.max_seq_length=16",
    "data.tokenizer=byte",
    "batch.global_batch_size=4",
    "training.max_steps=2",
    "schedule.warmup_steps=0",
    "logging.logging_steps=1",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("place")
    (root / "text").mkdir()
    (root / "text" / f"{HOSTILE.replace('/', '')}.txt").write_text("".join(f"line {n} of a text\n" for n in range(200)))
    quoted = json.dumps(HOSTILE)
    (root / "config.yaml").write_text(f"training:\n  max_steps: 2\n  {quoted}: 1\n")
    (root / "value.yaml").write_text(f"model:\n  type: {quoted}\n")
    (root / "study.yaml").write_text(f"recipe: gpt-tiny\n{quoted}: 1\n")
    rows = "".join(f"a text that is number {n}{HOSTILE},{HOSTILE if n % 2 else 'b'}\n" for n in range(60))
    (root / "data.tsv").write_text("text\tlabel\n" + rows.replace(",", "\t"))
    (root / "headers.tsv").write_text(f"one{HOSTILE}\ttwo{HOSTILE}\na\tb\n")
    for name in ("one", "two"):
        log = "".join(f"{step},{5 - step / 100},{step}\n" for step in range(60))
        (root / f"{name}{HOSTILE}.csv").write_text(f"step,loss,{HOSTILE}\n{log}")
    _on_a_terminal(root, [["train", "gpt-tiny", "data.source=text/*.txt", *SMALL, "--name", "run"]])
    manifest = root / "runs" / "run" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "status_detail": HOSTILE, "name": HOSTILE, "recipe": HOSTILE}))
    with open(root / "runs" / "run" / "events.jsonl", "a") as events:
        events.write(json.dumps({"step": 2, "segment": 0, "kind": "notice", "reason": HOSTILE}) + "\n")
        events.write(HOSTILE + "\n")
    return root


# Commands one after the other, in one process: most of a command's time is the import of PyTorch.
PROGRAM = """
import json, sys
from trainbook.cli.main import run
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["trainbook", *arguments]
    try:
        run()
    except SystemExit:
        pass
    sys.stdout.write("\\n<end of a command>\\n")
    sys.stdout.flush()
"""


def _on_a_terminal(root: Path, commands: list[list[str]]) -> list[str]:
    """What a terminal is sent by each command, stdout and stderr."""
    ours, theirs = pty.openpty()
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "CI")},
        "PYTHONPATH": str(Path(trainbook.__file__).parents[1]),
        "TRAINBOOK_CACHE": str(root / "cache"),
        "OMP_NUM_THREADS": "1",
        "TERM": "xterm-256color",
        "FORCE_COLOR": "1",
        "COLUMNS": "400",
    }
    command = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    process = subprocess.Popen(command, cwd=root, env=environment, stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError as error:  # on Linux the end of a terminal is an error
            assert error.errno == errno.EIO
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    process.wait()
    shown = b"".join(parts).decode("utf-8").split("<end of a command>")
    assert len(shown) == len(commands) + 1, shown[-1]
    return shown[:-1]


VERBS: dict[str, tuple[str, ...]] = {
    "train": ("train", "gpt-tiny", f"data.source=text/{HOSTILE}", *SMALL, "--name", "again"),
    "train, unknown knob": ("train", "config.yaml"),
    "train, dry": ("train", "gpt-tiny", f"data.source=text/{HOSTILE}.txt", *SMALL, "--dry-run"),
    "data": ("data", "data.tsv", "training.task=classify"),
    "data, headers": ("data", "headers.tsv", "training.task=classify"),
    "doctor": ("doctor", "run"),
    "doctor, log": ("doctor", f"one{HOSTILE}.csv"),
    "check": ("check", "gpt-tiny", f"data.source=text/{HOSTILE}", *SMALL),
    "explain": ("explain", "config.yaml"),
    "explain, value": ("explain", "value.yaml"),
    "compare": ("compare", f"one{HOSTILE}.csv", f"two{HOSTILE}.csv"),
    "plan": ("plan", "config.yaml"),
    "tune": ("tune", "study.yaml"),
    "generate": ("generate", "run", HOSTILE, "--max-new-tokens", "4"),
    "generate, for a program": ("generate", "run", HOSTILE, "--max-new-tokens", "4", "--json"),
    "resume": ("resume", "run", "training.max_steps=3", "--accept-changes"),
    "an unknown verb": (f"verb{HOSTILE}",),
    "a word too many": ("generate", "run", "x", HOSTILE),
}


@pytest.fixture(scope="module")
def shown(place: Path) -> dict[str, str]:
    return dict(zip(VERBS, _on_a_terminal(place, [list(arguments) for arguments in VERBS.values()]), strict=True))


@pytest.mark.parametrize("case", VERBS)
def test_no_command_reaches_the_terminal(case: str, shown: dict[str, str]):
    for command in COMMANDS:
        assert command not in shown[case], shown[case][max(0, shown[case].index(command) - 300) :][:600]
    assert "Traceback" not in shown[case]
    assert "TITLE" in shown[case], shown[case]  # the text was there to be shown


def test_answers_for_programs_mean_the_same(shown: dict[str, str]):
    assert json.loads(shown["generate, for a program"].strip())["prompt"] == HOSTILE
