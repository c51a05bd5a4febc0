"""Several workers on one GPU: one that has run out of memory beside others is tried again when it has it alone."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainbook.contained import open_no_link


@contextmanager
def beside_others(folder: Path) -> Iterator[None]:
    # Through the door, behind whoever waits there to have it alone.
    with _held(folder, "door", fcntl.LOCK_EX) as door, _held(folder, "room", fcntl.LOCK_SH):
        fcntl.flock(door, fcntl.LOCK_UN)
        yield


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until the others have ended their trials, and lets none of them begin another."""
    with _held(folder, "door", fcntl.LOCK_EX), _held(folder, "room", fcntl.LOCK_EX):
        yield


@contextmanager
def _held(folder: Path, name: str, kind: int) -> Iterator[int]:
    device = re.sub(r"\W", "-", os.environ.get("CUDA_VISIBLE_DEVICES") or "all")
    path = folder / "logs" / f"gpu-{socket.gethostname()}-{device}.{name}"
    path.parent.mkdir(exist_ok=True)
    descriptor = open_no_link(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, kind)
        yield descriptor
    finally:
        os.close(descriptor)
