"""Verdicts of the runs in the list, without anybody opening them: one run after the other, while the board is open."""

from __future__ import annotations

import threading
import time

from trainbook.board.findings import Verdicts
from trainbook.board.index import Index

IDLE = 2.0  # seconds between two looks for a run that has no verdict
LEAST_REST = 0.05
LONGEST = 600.0  # seconds that a verdict is waited for
PAUSE, PAUSE_BESIDE_TRAINING = 3.0, 15.0  # after a verdict, times what it took


class Judging:
    """At most a quarter of the time of one process, so that a run that somebody opens is judged soon; and hardly any
    while a run of the list is training, whose processor it may be."""

    def __init__(self, index: Index, verdicts: Verdicts) -> None:
        self._index, self._verdicts = index, verdicts
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._judge_all, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()

    def judge_next(self) -> bool:
        """False: each run that can have a verdict has one."""
        place = self._index.next_to_judge()
        if place is None:
            return False
        self._verdicts.of(place, place.stamp(), LONGEST)
        return True

    def _judge_all(self) -> None:
        rest = LEAST_REST
        while not self._is_closed.wait(rest):
            began = time.monotonic()
            has_judged = self.judge_next()
            rest = self._rest_after(time.monotonic() - began) if has_judged else IDLE

    def _rest_after(self, seconds: float) -> float:
        pause = PAUSE_BESIDE_TRAINING if self._index.is_training() else PAUSE
        return max(LEAST_REST, pause * seconds)
