"""A forked process is to its starter what one that `subprocess.Popen` starts is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import forked

TELLS = """
import json, os, sys
def reads(): return sys.stdin.readline().strip()
print(json.dumps({
    "arguments": sys.argv, "folder": os.getcwd(), "parent": os.getppid(), "path": sys.path[:3], "read": reads(),
    "environment": sorted(os.environ.items()), "leads": os.getsid(0) == os.getpid(), "name": __name__,
    "passed": os.read(int(sys.argv[1]), 9).decode(), "handlers": [str(signal_of(n)) for n in (1, 2, 13, 15)],
}))
print("complains", file=sys.stderr)
sys.exit(3)
""".replace("def reads", "from signal import getsignal as signal_of\ndef reads")


def told(kind: Any, folder: Path) -> tuple[Any, ...]:
    reading, writing = os.pipe()
    os.write(writing, b"passed on")
    environment = {
        "PYTHONPATH": f"{folder}{os.pathsep}/else",
        "PATH": os.environ["PATH"],
        "ONE": "1",
        "LC_CTYPE": "C.UTF-8",
    }
    process = kind(
        [sys.executable, "-c", TELLS, str(reading), "more"],
        **{"cwd": folder, "env": environment, "text": True, "pass_fds": [reading], "start_new_session": True},
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
    )
    out, err = process.communicate("a line\n", timeout=60)
    os.close(reading)
    os.close(writing)
    return process.returncode, json.loads(out), err


def test_it_has_all_that_it_was_given(tmp_path: Path):
    assert told(forked.Popen, tmp_path) == told(subprocess.Popen, tmp_path)


@pytest.mark.parametrize(
    "program", ["import os; os.kill(os.getpid(), 9)", "raise KeyboardInterrupt", "1 / 0", "exit('a word')", "exit(300)"]
)
def test_it_ends_alike(program: str):
    ended = []
    for kind in (forked.Popen, subprocess.Popen):
        process = kind([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
        _, err = process.communicate(timeout=60)
        ended.append((process.returncode, err.splitlines()[-1:]))
    assert ended[0] == ended[1]


def test_it_is_sent_signals(tmp_path: Path):
    process = forked.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() and process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    process.stdout.close()


def test_what_is_no_python_is_started_as_ever():
    with forked.Popen(["sh", "-c", "exit 4"]) as process:
        assert process.wait(timeout=60) == 4
