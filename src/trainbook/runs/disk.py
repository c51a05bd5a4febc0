"""Files of a run on disk: atomic writes and the lock."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainbook.bounded import json_text
from trainbook.contained import create_anew, fsync_folder, open_no_link, replacing
from trainbook.errors import RunError, RunFolderError, RunInUse, UserError


@contextmanager
def naming_the_file(path: Path) -> Iterator[None]:
    """Turn an OSError into a RunError that says which file could not be written and why."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_text_atomically(path: Path, text: str) -> None:
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, content: bytes) -> None:
    write_parts_atomically(path, [content])


def write_parts_atomically(path: Path, parts: Iterable[bytes]) -> None:
    with naming_the_file(path):
        if not path.name:  # "." or "/", which have no file beside them
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with replacing(path) as temporary, open(create_anew(temporary), "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        fsync_folder(path.parent)


# One writer per run folder: a lock that the kernel releases when its process dies, even by kill -9.


_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_held: set[int] = set()


WAITS = (0.01, 0.03, 0.1, 0.3, 1.0)  # for a lock whose holder is dead


@dataclass(frozen=True)
class Holder:
    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_known_dead(self) -> bool:
        """True only for a process of this host that is gone; of another host nothing is known."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


@contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Yields False where the file system knows no locks (some network ones): nothing then keeps a second writer out.

    A holder that is refused what it asked for leaves the file as it was.
    """
    try:
        descriptor = open_no_link(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be opened: {error.strerror}") from None
    _held.add(descriptor)
    try:
        locked = _try_lock(descriptor, path)
        former, afterwards = os.pread(descriptor, 1 << 12, 0).decode(errors="replace"), ""
        with naming_the_file(path):
            _write_holder(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        try:
            yield locked
        except UserError:
            afterwards = former
            raise
        finally:
            if descriptor in _held:
                _write_holder(descriptor, afterwards)
    finally:
        if descriptor in _held:  # a forked child has closed its copy already
            _held.discard(descriptor)
            os.close(descriptor)


def read_holder(path: Path) -> Holder | None:
    """Who wrote itself into the lock file; takes no lock, so it can never be in a writer's way."""
    try:
        content = json_text.read(path, most=1 << 12)
        return Holder(int(content["pid"]), str(content["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def note_who_stops(path: Path, who: str) -> None:
    """Beside the holder, just before the signal, which itself names nobody. It goes with the lock."""
    content = json_text.read(path, most=1 << 12)
    descriptor = open_no_link(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, json.dumps({**content, "stopped_by": who}).encode(), 0)
    finally:
        os.close(descriptor)


def who_stops(path: Path) -> str | None:
    try:
        found = json_text.read(path, most=1 << 12)["stopped_by"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def _try_lock(descriptor: int, path: Path) -> bool:
    for seconds in (*WAITS, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = read_holder(path)
            # A worker forked just before its parent was killed has yet to close its copy.
            if seconds is None or holder is None or not holder.is_known_dead:
                raise RunInUse(
                    f"{path.parent} is in use by {holder or 'another process'}: wait for it to end, or stop it"
                ) from None
            time.sleep(seconds)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return False
            raise
    return True


def _write_holder(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _close_in_child() -> None:
    # A lock lives as long as any copy of its descriptor: a data worker that outlives its killed parent would keep it.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
