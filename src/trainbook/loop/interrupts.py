"""Ctrl-C, SIGTERM and SIGHUP: the first one finishes the step and saves, the second one stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType

from trainbook.folding import folded

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: a terminal that was closed
ECHO_SECONDS = 1.0


class Interrupts:
    def __init__(self) -> None:
        self.requested: str | None = None
        self.can_save = False  # until the first step there is nothing to save: a signal then simply ends the program
        self._asked_at = 0.0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals nowhere else
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # as under nohup: the user wants it to run on without a terminal
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if not self.can_save:
            raise KeyboardInterrupt(name)
        if self._is_echo(name):
            return
        if self.requested is not None:
            _say("stopped at once; the last complete checkpoint is kept")
            os._exit(130)
        self.requested, self._asked_at = name, time.monotonic()
        _say(f"{name}: finishing this step and saving; interrupt again to stop at once")

    def _is_echo(self, name: str) -> bool:
        """Slurm and systemd signal every process of a job, and then our launcher passes on what it was sent itself."""
        is_launched = "TRAINBOOK_NOTE" in os.environ
        return is_launched and self.requested == name and time.monotonic() - self._asked_at < ECHO_SECONDS


def _say(line: str) -> None:
    # Straight to the descriptor: Python's own stream may be in use by what the signal broke into, or have none.
    with contextlib.suppress(OSError):
        # On a terminal in place of the status line, which is drawn again below; and the cursor comes back.
        begin, end = ("\r\x1b[2K", "\n\x1b[?25h") if os.isatty(2) else ("\n", "\n")
        os.write(2, f"{begin}{folded(line, stream=sys.stderr)}{end}".encode())
