"""Workers that share a GPU run side by side on it through NVIDIA's Multi-Process Service (MPS), where it is installed.
Without it the GPU works for one of them at a time, and a small model leaves most of it idle.

One service for each user of a machine: whoever comes first starts it, and whoever leaves last ends it. One that a
killed study has left behind is used again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MACHINES_OWN = Path("/tmp/nvidia-mps/control")  # a service that the machine offers: every CUDA program finds it
SECONDS = 30.0  # that the service has to start, and to end

# Whether a process can work through the service: one without PyTorch, which takes seconds to load.
TRIES = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
sys.exit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
"""


@contextmanager
def shared_gpu(workers_per_gpu: int, given: Mapping[str, str] = os.environ) -> Iterator[dict[str, str]]:
    """What is added to the workers' environment: nothing where each has a GPU of its own, or where there is no MPS."""
    if workers_per_gpu < 2 or PIPES in given or MACHINES_OWN.exists() or not shutil.which(CONTROL):
        yield {}
        return
    folder = Path(tempfile.gettempdir()) / f"trainbook-mps-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_ours(folder):
        yield {}
        return
    added = {PIPES: str(folder), LOGS: str(folder)}
    # The service itself sees all GPUs: the numbers that its clients give are counted among those that it sees.
    own = {name: value for name, value in given.items() if name != "CUDA_VISIBLE_DEVICES"} | added
    with _held(folder / "in-use") as lock:
        try:
            works = _start(own) and _works({**given, **added})
            yield added if works else {}
        finally:
            with suppress(BlockingIOError):  # another study uses it
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _control("quit", own)


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


@contextmanager
def _held(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


def _start(environment: Mapping[str, str]) -> bool:
    """Or find it running, in which case a second one refuses to start."""
    return _control("get_server_list", environment) or _run([CONTROL, "-d"], environment)


def _works(environment: Mapping[str, str]) -> bool:
    return _run([sys.executable, "-c", TRIES], environment)


def _control(command: str, environment: Mapping[str, str]) -> bool:
    return _run([CONTROL], environment, command + "\n")


def _run(command: list[str], environment: Mapping[str, str], text: str = "") -> bool:
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            input=text.encode(),
            stdout=subprocess.DEVNULL,  # not to a pipe: the service would hold it open for as long as it lives
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
