"""How the processes of a run ended, and how to report it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainbook.bounded.files import open_bytes, read_bytes, read_text
from trainbook.runs.jsonl import loads

NOTE = "TRAINBOOK_NOTE"  # the environment names a file in which a rank leaves how it ended: see cli/worker.py
LOG = "TRAINBOOK_LOG"  # … and one for a traceback that is not for the terminal
USER_ERROR = 2
INTERRUPTED = (130, 143)
LAST_LINES = 12


@dataclass(frozen=True)
class ExitStatus:
    rank: int
    code: int  # negative: the signal that killed it
    at: float  # by the clock of the machine
    is_told: bool = False  # it left by itself, and has said why where it could
    error: str = ""  # the last line of an exception that nobody caught
    is_consequence: bool = False  # the exception says no more than that another process is gone
    by_us: bool = False  # killed by the launcher, because of another one
    again: str = ""  # it asks that all be started again, and says why; that is no failure of the run

    @property
    def has_failed(self) -> bool:
        return self.code not in (0, *INTERRUPTED)


@dataclass(frozen=True)
class Verdict:
    code: int
    guilty: ExitStatus | None = None  # None: there is nothing more to say
    again: str = ""  # one of them asks for it: what to tell

    @property
    def can_be_tried_again(self) -> bool:
        return self.code not in (0, USER_ERROR) and self.code < 128


def judge(endings: Sequence[ExitStatus], sent: int | None = None) -> Verdict:
    """The overall exit code, and the process to blame. `sent` is the signal that was forwarded to all."""
    by_itself = sorted((ending for ending in endings if not ending.by_us), key=lambda ending: ending.at)
    killed = [ending for ending in endings if ending.by_us or (sent and ending.code == -sent)]
    failed = [ending for ending in by_itself if ending.has_failed and ending not in killed]
    wrong = [ending for ending in failed if ending.code == USER_ERROR]
    crashed = [ending for ending in failed if not (ending.is_told or ending.is_consequence) and ending not in wrong]
    interrupted = [ending.code for ending in by_itself if ending.code in INTERRUPTED]
    asking = [ending for ending in endings if ending.again]
    if asking and not sent:
        return Verdict(1, again=asking[0].again)
    if crashed:
        return Verdict(1, crashed[0])
    if sent and (interrupted or killed):
        return Verdict(interrupted[0] if interrupted else 128 + sent)
    if wrong:
        return Verdict(USER_ERROR, None if any(ending.rank == 0 for ending in wrong) else wrong[0])
    if interrupted:
        return Verdict(interrupted[0])
    if not failed:
        return Verdict(0)
    if any(ending.rank == 0 and ending.is_told for ending in failed):
        return Verdict(1)
    return Verdict(1, min(failed, key=lambda ending: ending.is_consequence))


def reason(ending: ExitStatus) -> str:
    if ending.code < 0:
        name = _signal_name(-ending.code)
        from_system = ", perhaps because the machine ran out of memory" if ending.code == -signal.SIGKILL else ""
        return f"was killed ({name}{from_system})"
    if ending.error:
        return f"failed: {ending.error}"
    return f"ended with exit code {ending.code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def message(ending: ExitStatus, nproc: int, log: Path) -> list[str]:
    """Lines that name the rank, why it ended, and its last output."""
    lines = last_lines(log)
    if lines:
        where = f"{log} ends with:"
    elif ending.rank == 0:
        where = f"Its output is above; the output of the other ranks is in {log.parent}."
    else:
        where = f"{log} is empty."
    return [f"rank {ending.rank} of {nproc} {reason(ending)}. The other ranks were stopped.", where, *lines]


def last_lines(log: Path, number: int = LAST_LINES) -> list[str]:
    if not log.is_file():
        return []
    with open_bytes(log) as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - 20_000))
        text = stream.read().decode(errors="replace")
    return [f"  {line}" for line in text.rstrip().splitlines()[-number:]]


def ask_to_start_again(why: str, how: str) -> bool:
    """A rank that is about to end asks the launcher for a restart. False: there is no launcher."""
    note = os.environ.get(NOTE)
    if note is None:
        return False
    _asking(Path(note)).write_text(f"{why} All ranks are restarted, {how}.", encoding="utf-8")
    return True


def asks_for_start(note: Path) -> bool:
    return _asking(note).is_file()


def _asking(note: Path) -> Path:
    return note.with_suffix(".again")


def read_ending(rank: int, code: int, note: Path) -> ExitStatus:
    """What a process recorded about its end; nothing if it was killed."""
    again = read_text(_asking(note)) if asks_for_start(note) else ""
    try:
        left = loads(read_bytes(note))
        return ExitStatus(rank, code, left["at"], left["is_told"], left["error"], left["is_consequence"], again=again)
    except (OSError, ValueError, LookupError, TypeError):
        return ExitStatus(rank, code, time.time(), again=again)
