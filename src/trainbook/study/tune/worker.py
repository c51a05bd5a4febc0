"""One worker: takes a trial, trains it, says what came of it, and takes the next, until there is none."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trainbook.errors import Interrupted, TrainbookError
from trainbook.runs import RunFolder
from trainbook.study.tune.ledger import Ledger
from trainbook.study.tune.pruning import bracket_of, goes_on, rungs_of
from trainbook.study.tune.trial import WAIT, Planning, Trial
from trainbook.study.tune.trial_run import TRIALS, Busy, Failed, Objective, TrialTask
from trainbook.terminal import echo

POLL_SECONDS = 0.2


def worker_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


class MayBeUnwell(Exception):
    """A trial failed in a way that may have hurt this process: another one is to go on."""


class Worker:
    def __init__(
        self,
        ledger: Ledger,
        planning: Planning,
        folder: Path,
        objective: Objective,
        name: str | None = None,
        share: float = 1.0,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        """`share` is that of a GPU; `interrupt` ends the training under way, saved."""
        self.ledger, self.planning, self.folder, self.objective = ledger, planning, folder, objective
        self.name, self.share = name or worker_name(), share
        self.is_asked_to_stop, self.interrupt = is_asked_to_stop, interrupt
        self._busy: set[int] = set()  # trials in whose folders others were still at work

    def work(self, most: int | None = None) -> bool:
        """Train trials, at most so many. True: there is none left.

        An interruption gives the trial back, and is raised.
        """
        ended = 0
        while most is None or ended < most:
            self._stop_if_asked()
            taken = self.ledger.take(self.name, self.planning.next_order, self.planning.is_spent, self._busy)
            if taken is None:
                return True
            if taken == WAIT:
                time.sleep(POLL_SECONDS)
                continue
            assert isinstance(taken, Trial)
            heartbeat = _Heartbeat(self.ledger, taken, self.name, self.share, self.interrupt)
            failed: Failed | None = None
            try:
                with heartbeat:
                    trial = self._train(taken)
            except (Interrupted, KeyboardInterrupt):
                if heartbeat.is_lost and not self.is_asked_to_stop():
                    continue  # another one has it by now
                self.ledger.give_back(taken, self.name)
                raise
            except Busy:  # whoever had it before still writes: it will end, or die
                self.ledger.give_back(taken, self.name)
                self._busy.add(taken.number)
                time.sleep(10 * POLL_SECONDS)
                continue
            except Failed as error:
                failed = error
                cost = max(error.tokens, taken.tokens)
                trial = replace(taken, state="failed", reason=error.reason, tokens=cost, run=error.run)
            self._busy.clear()
            self.ledger.finish(trial, self.name)
            self._make_room()
            ended += 1
            if failed is not None and not failed.is_expected:
                raise MayBeUnwell(failed.reason)
        return False

    def _make_room(self) -> None:
        """Of what has ended, only what the study still wants keeps its weights: those of all would fill a disk."""
        trials = self.ledger.trials()
        kept = self.planning.keeps(trials)
        ended = [each for each in trials if each.state in ("done", "pruned", "infeasible")]
        for each in ended:
            if each.run is not None and each.number not in kept:
                # By its name alone: a ledger that names another folder must not have anything deleted there.
                RunFolder(self.folder / TRIALS / Path(each.run).name).drop_checkpoints()

    def _stop_if_asked(self) -> None:
        if self.is_asked_to_stop():
            raise Interrupted("asked to stop")

    def _train(self, trial: Trial) -> Trial:
        rungs = self._rungs(trial)
        judged = {each.rung for each in self.ledger.reports() if each.number == trial.number} if rungs else set()
        sign = -1 if self.planning.higher_is_better else 1
        for rung in (*rungs, 1.0):
            if rung in judged:  # by the worker that had it before
                continue
            self._stop_if_asked()
            try:
                outcome = self.objective(TrialTask(trial, self.folder, self.planning.metric, rung, self.share < 1))
            except (Interrupted, KeyboardInterrupt, Busy, Failed):
                raise
            except TrainbookError as error:  # of one trial: the others may be well
                raise Failed(str(error), trial.tokens, trial.run) from error
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                raise Failed(_last_line(error), trial.tokens, trial.run, is_expected=False) from error
            trial = replace(trial, run=outcome.run, tokens=outcome.tokens)
            if outcome.loss is None or not math.isfinite(outcome.loss):
                if rung < 1.0:  # the worst there: the best third is one of all that came so far
                    self.ledger.report(trial, rung, math.nan, self._rivals(trial))
                reason = outcome.reason or f"its {self.planning.metric} is {outcome.loss}"
                return replace(trial, state="infeasible", loss=None, reason=reason)
            if rung < 1.0:
                others = [sign * each for each in self.ledger.report(trial, rung, outcome.loss, self._rivals(trial))]
                if not goes_on(sign * outcome.loss, others):
                    reason = f"stopped at {rung:.0%} of the run with {outcome.loss:.4g}"
                    return replace(trial, state="pruned", loss=outcome.loss, reason=reason)
            else:
                trial = replace(trial, state="done", loss=outcome.loss)
        return trial

    def _rungs(self, trial: Trial) -> tuple[float, ...]:
        """Where the trial pauses."""
        pruning = self.planning.pruning
        if trial.kind != "search" or pruning == "none":
            return ()
        return rungs_of(pruning, self._arm(trial).index(trial.number))

    def _rivals(self, trial: Trial) -> set[int]:
        """Whom it is compared with at a rung: those of its arm and its bracket."""
        pruning, arm = self.planning.pruning, self._arm(trial)
        mine = bracket_of(pruning, arm.index(trial.number))
        return {number for place, number in enumerate(arm) if bracket_of(pruning, place) == mine}

    def _arm(self, trial: Trial) -> list[int]:
        return [each.number for each in self.ledger.trials() if each.kind == "search" and each.arm == trial.arm]


def _last_line(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]


class _Heartbeat:
    """Renews the lease from a thread of its own, and counts the time. A lease that is lost ends the training."""

    def __init__(
        self,
        ledger: Ledger,
        trial: Trial,
        worker: str,
        share: float = 1.0,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self.ledger, self.trial, self.worker, self.share, self.interrupt = ledger, trial, worker, share, interrupt
        self.is_lost = False
        self._stop = threading.Event()
        self._counted = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._renew()

    def _beat(self) -> None:
        while not self._stop.wait(self.ledger.lease_seconds / 4):
            try:
                is_mine = self._renew()
            except Exception as error:  # the next beat tries again; the trial's own end says what is wrong
                echo(f"the lease of trial {self.trial.number} was not renewed: {error}", err=True)
                continue
            if not is_mine and not self._stop.is_set():
                self.is_lost = True
                self.interrupt()
                return

    def _renew(self) -> bool:
        now = time.monotonic()
        seconds, self._counted = now - self._counted, now
        return self.ledger.renew(self.trial, self.worker, seconds, self.share * seconds)
