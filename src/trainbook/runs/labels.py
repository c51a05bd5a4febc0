"""What a person says of a run: its tags, a note, and whether it is archived. In board.json, beside the manifest.

The run itself never reads or writes this file, so it can be changed while the run goes on.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.errors import RunError, RunFolderError, UserError
from trainbook.runs.disk import write_text_atomically

FILE = "board.json"
MOST_BYTES = 1 << 17  # of the file
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 50, 50, 10_000
_VERSION = 1
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True)
class Labels:
    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False


@dataclass(frozen=True)
class ReadLabels:
    """`notice` says what is wrong with the file; then there are no labels. `stamp` is another one after each change."""

    labels: Labels = Labels()
    notice: str = ""
    stamp: tuple[int, int, int] | None = None


def read_labels(folder: Path) -> ReadLabels:
    """Of a run's folder. No file is as good as one that says nothing; whatever is wrong with it, it is no error."""
    path, stamp = folder / FILE, None
    try:
        facts = os.lstat(path)
        stamp = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        if stat.S_ISLNK(facts.st_mode):
            raise ValueError("it is a link")
        return ReadLabels(_labels_of(json_text.read(path, most=MOST_BYTES)), stamp=stamp)
    except FileNotFoundError:
        return ReadLabels()
    except (OSError, ValueError) as error:
        told = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        told = told.removeprefix(f"{path}: ").rstrip(".")
        notice = f"{path} was not read, so tags, note and archiving are unknown: {told}."
        return ReadLabels(notice=notice, stamp=stamp)


def change_labels(
    folder: Path,
    *,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
    note: str | None = None,
    archived: bool | None = None,
) -> Labels:
    """The labels after the change. A file that cannot be read is kept as board.json.unreadable."""
    new, gone = [checked_tag(tag) for tag in add], {tag.strip().casefold() for tag in remove}
    with _alone(folder):
        found = read_labels(folder)
        if found.notice:
            _set_aside(folder / FILE)
        labels = found.labels
        kept = [tag for tag in labels.tags if tag.casefold() not in gone]
        by_letters: dict[str, str] = {}
        for tag in (*kept, *new):
            by_letters.setdefault(tag.casefold(), tag)
        tags = tuple(by_letters.values())
        if len(tags) > MOST_TAGS:
            raise UserError(f"a run must have at most {MOST_TAGS} tags, but {folder.name} would have {len(tags)}.")
        changed = replace(labels, tags=tags)
        changed = changed if note is None else replace(changed, note=checked_note(note))
        changed = changed if archived is None else replace(changed, archived=archived)
        if changed != labels:
            content = {"schema_version": _VERSION, **asdict(changed)}
            write_text_atomically(folder / FILE, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return changed


def checked_tag(tag: str) -> str:
    """Without spaces around it; UserError if it cannot be a tag."""
    plain = " ".join(tag.split())
    if not plain or len(plain) > LONGEST_TAG or _CONTROL.search(plain) or set(plain) & set('",'):
        shown = plain if len(plain) <= LONGEST_TAG else f"{plain[:LONGEST_TAG]}…"
        raise UserError(
            f"a tag must have 1 to {LONGEST_TAG} characters, without commas, double quotes and control characters, "
            f"but got {shown!r}."
        )
    return plain


def checked_note(note: str) -> str:
    text = note.replace("\r\n", "\n").strip()
    if len(text) > LONGEST_NOTE:
        raise UserError(f"a note must have at most {LONGEST_NOTE:,} characters, but has {len(text):,}.")
    if _CONTROL.search(text):
        raise UserError("a note must not have control characters.")
    return text


def _labels_of(content: Any) -> Labels:
    """ValueError: it is not what this module writes. What a later version adds is passed over."""
    if not isinstance(content, dict):
        raise ValueError("it must be an object")
    tags, note, archived = content.get("tags", []), content.get("note", ""), content.get("archived", False)
    if not isinstance(tags, list) or len(tags) > MOST_TAGS or not all(isinstance(tag, str) for tag in tags):
        raise ValueError(f"tags must be a list of at most {MOST_TAGS} strings")
    if not isinstance(note, str) or type(archived) is not bool:
        raise ValueError("note must be a string, and archived true or false")
    try:
        return Labels(tuple(dict.fromkeys(map(checked_tag, tags))), checked_note(note), archived)
    except UserError as error:
        raise ValueError(str(error)) from None


def _set_aside(path: Path) -> None:
    try:
        os.replace(path, path.with_name(f"{path.name}.unreadable"))
    except OSError as error:
        raise RunError(f"{path}: cannot be replaced: {error.strerror or error}") from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two who change labels at once, as the board and the command line, do so one after the other."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RunFolderError(f"{folder} cannot be opened: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF):
                raise
        yield
    finally:
        os.close(descriptor)
