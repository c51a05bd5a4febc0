"""Python programs that begin within milliseconds, as processes forked from one that has imported torch and Trainbook.

To whoever starts it, such a process is its own child like any other: with exit code, pipes, signals, session. What
differs is that its modules are imported before its environment is known, and that all have the seed of Python's hashes
in common. Tests of how a program begins start it anew: `subprocess.Popen`.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# What a training run has imported by its end, and what starting one needs.
IMPORTED = (
    "numpy.ma",
    "torch",
    "torch._dynamo",
    "trainbook.api",
    "trainbook.cli.main",
    "trainbook.cli.trial",
    "trainbook.cli.worker",
    "trainbook.doctor.rules",
    "trainbook.loop.start",
    "trainbook.report",
    "trainbook.study.workers",
)
OF_EXTRAS = ("optuna", "sqlalchemy")
CANNOT = ("executable", "preexec_fn", "shell", "gid", "gids", "uid")  # be asked of a process that is forked
SET_CHILD_SUBREAPER = 36  # of prctl: an orphan among the descendants becomes a child of this process
PATH = "PYTHONPATH"
REAL = subprocess.Popen


class Popen(REAL):  # pyright: ignore[reportMissingTypeArgument]
    """`subprocess.Popen`, by a fork where the command is Python with `-m` or `-c`."""

    def _execute_child(self, *given: Any) -> None:
        real = super()._execute_child  # pyright: ignore[reportAttributeAccessIssue]
        asked = inspect.signature(real).bind(*given).arguments
        if not _can_fork(asked):
            return real(*given)
        pipes = [asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        streams = [number if wanted == -1 else wanted for number, wanted in enumerate(pipes[0::2][:1] + pipes[3::2])]
        order = {
            "arguments": [os.fspath(each) for each in asked["args"][1:]],
            "folder": os.path.abspath(os.fspath(asked["cwd"] or ".")),
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
            "own_session": asked["start_new_session"],
            "files": [0, 1, 2, *asked["pass_fds"]],
        }
        self.pid = _ask(order, [*streams, *asked["pass_fds"]])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # pyright: ignore[reportAttributeAccessIssue]


def run(command: list[str], timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with what it said, by a fork."""
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _can_fork(asked: dict[str, Any]) -> bool:
    command = asked["args"]
    is_python = not isinstance(command, str | bytes) and command[0] == sys.executable
    flags = list(command[1:3]) if is_python else []
    return (
        sys.platform == "linux"
        and ("-m" in flags[:1] or "-c" in flags[:1] or flags == ["-P", "-m"])
        and not any(asked[name] for name in CANNOT)
        and asked["process_group"] == -1
        and asked["umask"] < 0
    )


@cache
def _server(pid: int) -> socket.socket:
    """The line to the one of this process. It ends when the line is closed."""
    import trainbook

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = str(Path(trainbook.__file__).parents[1])
    server = REAL(
        [sys.executable, __file__, str(theirs.fileno())],
        env={**os.environ, PATH: os.pathsep.join([source, os.environ.get(PATH, "")]), "OMP_NUM_THREADS": "1"},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def _ask(order: dict[str, Any], files: list[int]) -> int:
    line = _server(os.getpid())
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(SET_CHILD_SUBREAPER, 1)
    try:
        socket.send_fds(line, [json.dumps(order).encode()], files)
        pid = int(line.recv(100))
        assert line.recv(100) == b"an orphan"
    finally:
        prctl(SET_CHILD_SUBREAPER, 0)
    return pid


def serve(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Comes back in each new process, with what it was ordered to do."""
    while True:
        told, files, _, _ = socket.recv_fds(line, 1 << 20, 64)
        if not told:
            os._exit(0)
        between = os.fork()
        if between == 0:
            parent, child = os.getpid(), os.fork()
            if child == 0:
                line.close()
                while os.getppid() == parent:
                    time.sleep(0.001)
                return json.loads(told), files
            line.send(str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        line.send(b"an orphan")
        for file in files:
            os.close(file)


def become(order: dict[str, Any], files: list[int]) -> None:
    """What a process is when Python has begun in it."""
    if order["own_session"]:
        os.setsid()
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 500) for file in files]
    for file in files:
        os.close(file)
    for file, wanted in zip(moved, order["files"], strict=True):
        os.dup2(file, wanted)
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = _text(1, sys.stdout.errors)
    sys.stderr = sys.__stderr__ = _text(2, sys.stderr.errors)
    import numpy
    import torch

    os.fsync = lambda fd: None  # a kill, unlike a power cut, loses nothing that was written
    numpy.random.seed()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def _text(file: int, errors: str | None) -> io.TextIOWrapper:
    if os.environ.get("PYTHONUNBUFFERED"):
        return io.TextIOWrapper(open(file, "wb", 0, closefd=False), "utf-8", errors, write_through=True)
    return open(file, "w", encoding="utf-8", errors=errors, closefd=False, buffering=1 if file == 2 else -1)


def execute(arguments: list[str], beside: list[str]) -> None:
    """As `python ARGUMENTS` does; `beside` is where Python finds modules without an environment."""
    is_safe = arguments[0] == "-P"
    how, what, *rest = arguments[is_safe:]
    first = [] if is_safe else ["" if how == "-c" else os.getcwd()]
    named = [os.path.abspath(each) for each in os.environ.get(PATH, "").split(os.pathsep) if each]
    sys.path[:] = [*first, *named, *beside]
    sys.argv[:] = [how, *rest]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)


def end(code: Any) -> None:
    """As Python does, except that thousands of modules are not taken apart."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads, or it is closed
            code = code or 120
    os._exit((code or 0) & 255)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    own = {str(Path(__file__).parent), *os.environ[PATH].split(os.pathsep)}
    beside = [entry for entry in sys.path if entry not in own]
    for name in (*IMPORTED, *(name for name in OF_EXTRAS if find_spec(name))):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    order, files = serve(socket.socket(fileno=int(sys.argv[1])))
    become(order, files)
    try:
        execute(order["arguments"], beside)
        end(0)
    except SystemExit as asked:
        end(asked.code)
