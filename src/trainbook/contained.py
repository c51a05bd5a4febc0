"""What lies in a folder that somebody may have handed over stays in it: no link and no name leads out of it.

The folder itself may be a link, and may lie anywhere; what is below it may not lead elsewhere. All that is read from or
written to run folders, checkpoints, studies and data caches goes through here. A file that is replaced is so at once:
its readers see the old content or the new, never a mixture.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from trainbook.errors import LeadsOut


def must_stay_inside(folder: Path) -> None:
    """LeadsOut: a link below the folder leads out of it, or something there is neither a file nor a folder.

    It may not exist yet. What a writer removes meanwhile is passed over.
    """
    root = os.path.realpath(folder)
    waiting = [str(folder)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:  # it is gone, or nobody can read it
            continue
        for entry in entries:
            if entry.is_symlink():
                _must_lead_inside(entry.path, root, folder)
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                raise LeadsOut(f"{entry.path} is neither a file nor a folder: remove it.")


def link_must_stay_inside(path: Path, folder: Path) -> None:
    """The same for one thing in a folder."""
    if path.is_symlink():
        _must_lead_inside(str(path), os.path.realpath(folder), folder)


def is_plain_name(name: object) -> bool:
    """Whether it names something in its own folder, at whatever depth, as far as a name can tell."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path != PurePosixPath(".")


def open_no_link(path: Path, flags: int, mode: int = 0o644) -> int:
    """As os.open; LeadsOut where the last part of the path is a link, whatever it leads to."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ELOOP or path.is_symlink():
            raise LeadsOut(f"{path} is a link to {os.path.realpath(path)}. {_REMEDY}") from None
        raise


def create_anew(path: Path) -> int:
    """Open a new file for writing, in place of whatever has its name; a link there is removed, not followed."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextmanager
def replacing(path: Path, temporary: Path | None = None, shared: bool = False) -> Iterator[Path]:
    """Yields a name beside the file. What is written there takes the file's name at the end, or is gone after an error.

    `shared`: several machines may be writing it, so a process number in the name would not tell them apart.
    """
    if temporary is None:
        mark = f"{uuid.uuid4().hex[:8]}.partial" if shared else f"{os.getpid()}.tmp"
        temporary = path.with_name(f"{path.name}.{mark}" if shared else f".{path.name}.{mark}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)
        raise


def fsync_folder(path: Path) -> None:
    """Makes the names in a folder durable; fsync of a file alone does not, and a power cut may forget a rename."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such operation
            raise
    finally:
        os.close(folder)


_REMEDY = "Files are not read or written through it: put the file or folder itself there."


def _must_lead_inside(link: str, root: str, folder: Path) -> None:
    target = os.path.realpath(link)
    if target != root and not target.startswith(root.rstrip(os.sep) + os.sep):
        raise LeadsOut(f"{link} is a link to {target}, outside of {folder}. {_REMEDY}")
