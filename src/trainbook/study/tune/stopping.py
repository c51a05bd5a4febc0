"""How a worker is asked to stop, so that it is never lost: not in a trial's last step, nor between two trials.

A training has signal handlers of its own, and one that has just made its last step takes no notice of them. So whoever
started us says it through our input, and every signal is also noted down here, whoever handles it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Given = TypeVar("Given")
Answer = TypeVar("Answer")


class Stopping:
    def __init__(self) -> None:
        self._asked = threading.Event()
        self._own = 0  # signals that we have sent to ourselves, and that ask for no more than the end of a training
        self._is_training = False

    def is_asked(self) -> bool:
        return self._asked.is_set()

    def listen(self) -> None:
        """From now on signals break into a training only, and are noted down otherwise. In the main thread."""
        heard, tells = os.pipe()
        os.set_blocking(tells, False)
        signal.set_wakeup_fd(tells)
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._note_signals, args=(heard,), name="signals", daemon=True).start()

    def follow(self, descriptor: int) -> None:
        """Stop when something is said there, or when whoever holds the other end is gone."""

        def watch() -> None:
            os.read(descriptor, 1)  # not sys.stdin, whose lock would be held when the interpreter ends
            self._asked.set()
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, name="parent watch", daemon=True).start()

    def interrupt(self) -> None:
        """End the training under way, saved; but not the worker."""
        self._own += 1
        os.kill(os.getpid(), signal.SIGTERM)

    def breaking_into(self, train: Callable[[Given], Answer]) -> Callable[[Given], Answer]:
        """The same function, into which a signal breaks where it has no handler of its own."""

        def training(given: Given) -> Answer:
            self._is_training = True
            try:
                return train(given)
            finally:
                self._is_training = False

        return training

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_training:
            raise KeyboardInterrupt(signal.Signals(number).name)

    def _note_signals(self, heard: int) -> None:
        while numbers := os.read(heard, 64):
            for number in numbers:
                if number == signal.SIGTERM and self._own:
                    self._own -= 1
                elif number in SIGNALS:
                    self._asked.set()
