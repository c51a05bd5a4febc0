"""Disks that are full or may not be written to: small file systems in memory, in a mount namespace of our own.

The namespace is the program's: nothing is mounted for anyone else, and all of it is gone when the program ends. Where
the machine allows no such thing, what needs it is left out and said to be; under CI=true that is an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = "RELIABILITY_MOUNTS"
WAYS = (("--mount",), ("--user", "--map-root-user", "--mount"))  # as root; as anyone, where user namespaces are open
WHY_NOT = "this machine lets us mount no small disk (root, or user namespaces, are needed)"


def with_mounts_of_our_own() -> None:
    """Start this program again where it may mount; returns there, or at once where that cannot be had."""
    if VARIABLE in os.environ:
        return
    for way in WAYS:
        if _works(way):
            command = ["unshare", *way, sys.executable, *sys.argv]
            os.execvpe(command[0], command, {**os.environ, VARIABLE: "yes"})
    if os.environ.get("CI") == "true":
        sys.exit(f"error: {WHY_NOT}, and CI may leave nothing out")
    os.environ[VARIABLE] = "no"


def can_mount() -> bool:
    return os.environ.get(VARIABLE) == "yes"


def _works(way: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory() as place:
        command = ["unshare", *way, "mount", "-t", "tmpfs", "tmpfs", place]
        try:
            return subprocess.run(command, capture_output=True).returncode == 0
        except FileNotFoundError:
            return False


class SmallDisk:
    """A file system of a few megabytes."""

    def __init__(self, place: Path, kilobytes: int) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place))
        self._filler = place / "filler"

    def fill(self, leaving_kilobytes: int = 0) -> None:
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):  # others write as well, and end it sooner
            while (left := self._free_kilobytes() - leaving_kilobytes) > 0:
                file.write(bytes(1024 * min(left, 256)))

    def _free_kilobytes(self) -> int:
        facts = os.statvfs(self.place)
        return facts.f_bavail * facts.f_frsize // 1024

    def make_room(self) -> None:
        self._filler.unlink(missing_ok=True)

    def grow(self, kilobytes: int) -> None:
        _mount("-o", f"remount,size={kilobytes}k", str(self.place))

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.place)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Whoever opens a file in the folder from now on can't write; what was opened before goes on."""
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,bind,ro", str(folder))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")
