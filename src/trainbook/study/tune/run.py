"""A whole study: its folder, its workers as processes, what is shown meanwhile, and the end.

runs/<name>/
  base.yaml      what all trials share
  study.db       the ledger, unless it is in another database
  trials/        a run folder for each trial, like any other run
  best.yaml      the recipe that was found
  study.json     the answer; conclusion.md the same in words; *.png the pictures
"""

from __future__ import annotations

import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from trainbook.errors import Interrupted, RunError, RunFolderError, TrainbookError, UserError
from trainbook.knobs import Loaded, load
from trainbook.knobs.recipes import RECIPE_PREFIX, is_recipe
from trainbook.runs import make_folder
from trainbook.study.space import BASE, keep_base, trial_guard, trials_text
from trainbook.study.tune.database import FIRST_PATIENCE
from trainbook.study.tune.ledger import Ledger, opened, sqlite_url
from trainbook.study.tune.planning import Plan, Tuning, extended, first_plan
from trainbook.study.tune.study_file import StudyQuestion
from trainbook.study.tune.trial import Planning, Trial
from trainbook.study.tune.trial_run import TRIALS
from trainbook.study.tune.workers import LOGS, RayWorkers, Workers
from trainbook.study.workers import sharing
from trainbook.supervisor import Signals, signal_name

LEDGER = "study.db"
POLL_SECONDS = 0.3
MOST_DEATHS = 10  # of workers, without a trial that ends
SAME_FAILURES = 5  # in a row: what fails them is not in the trials
STOPPED, UNWELL, MORE = 130, 75, 76  # exit codes of a worker: asked to stop; another process is to go on; at its end
OURS = {BASE, LEDGER, f"{LEDGER}-journal", f"{LEDGER}-wal", f"{LEDGER}-shm", TRIALS, LOGS}
Watch = Callable[[Sequence[Trial], dict[str, Any] | None], None]


class StudyRequest(Protocol):
    @property
    def loaded(self) -> Loaded: ...
    @property
    def workers(self) -> int: ...
    def as_json(self) -> dict[str, Any]: ...


Asked = TypeVar("Asked", bound=StudyRequest)


@dataclass
class RunningStudy(ABC, Generic[Asked]):
    """Where a study is, and how its workers are started."""

    question: Asked
    folder: Path
    storage: str | None = None  # another database than the folder's own
    command: Sequence[str] = ()  # of a worker; it is told the folder, the database and its own name
    say: Callable[[str], None] = lambda line: None
    watch: Watch = lambda trials, plan: None
    lease_seconds: float = 60.0
    ray: str | None = None  # the address of a Ray cluster, whose tasks the trials are
    quiet: bool = False  # nothing is printed of a pretraining
    _asked: str | None = None
    _is_cut_off: bool = False  # what was under way had no time to save
    _failures: list[str] = field(default_factory=list)  # reasons of the last trials, as long as they are the same
    _seen: set[int] = field(default_factory=set)  # trials that have ended

    kind: ClassVar[str]  # with its article

    @property
    @abstractmethod
    def planning(self) -> Planning: ...

    @property
    @abstractmethod
    def size(self) -> str:
        """What an extended study has more of, in words."""

    @abstractmethod
    def open(self, ledger: Ledger) -> bool:
        """Write down the question, or find it. True: the study is extended."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def url(self) -> str:
        return self.storage or sqlite_url(self.folder / LEDGER)

    def prepare(self) -> bool:
        """Make the folder and write down the question, or find them. True: it goes on."""
        holds = make_folder(self.folder)
        goes_on = BASE in holds and bool(holds & {LEDGER, TRIALS})  # a study of another kind has a base too
        if holds and not goes_on and not holds <= OURS:
            raise RunFolderError(f"{self.folder} exists and is not {self.kind}: choose another --name.")
        for part in (TRIALS, LOGS):
            make_folder(self.folder / part)
        had_trials = self._has_trials  # before the ledger is asked: whoever has begun one was in the ledger by then
        with opened(self.url, self.name, first_patience=FIRST_PATIENCE) as ledger:
            if had_trials and not ledger.is_begun():
                raise RunFolderError(
                    f"{self.folder / TRIALS} holds runs that are not in the study's ledger: use the --storage they "
                    f"were started with, choose another --name, or remove {self.folder}."
                )
            is_extended = self.open(ledger)
            again = ledger.try_failed_again()
        if is_extended:
            self._tell(f"the study is extended: {self.size}")
        if again:
            self._tell(f"retrying {again} failed trial{'s' if again > 1 else ''}")
        keep_base(self.folder / BASE, trials_text(self._pretrained()), self._has_trials)
        return goes_on

    def _pretrained(self) -> Loaded:
        """The base. A recipe that it starts from is trained first, once: all trials start from the same weights."""
        loaded = self.question.loaded
        recipe = loaded.config.model.pretrained
        if recipe is None or not is_recipe(recipe) or (self._has_trials and self._begins_with(recipe)):
            return loaded
        from trainbook.loop.request import TrainRequest, with_whole_paths
        from trainbook.loop.start import with_pretraining
        from trainbook.parallel import ALONE

        self._tell(f"all trials start from one pretraining: {recipe.removeprefix(RECIPE_PREFIX)}")
        request = TrainRequest(loaded, None, None, self.folder.parent, quiet=self.quiet)
        return with_whole_paths(with_pretraining(request, ALONE))

    def _begins_with(self, recipe: str) -> bool:
        """Trials have begun, each with a pretraining of its own."""
        return load(self.folder / BASE).config.model.pretrained == recipe

    @property
    def _has_trials(self) -> bool:
        return any(each.is_dir() for each in (self.folder / TRIALS).iterdir())

    def run(self) -> list[Trial]:
        """All trials, ended. Ctrl-C and SIGTERM let the workers save, and raise Interrupted."""
        with ExitStack() as stack:
            workers = self._workers(stack)
            return self._whole(*self._run(workers))

    def _run(self, workers: Workers | RayWorkers) -> tuple[list[Trial], dict[str, Any] | None]:
        with opened(self.url, self.name) as ledger, Signals(lambda number: self._interrupt(number, workers)):
            ledger.database.say = self._tell
            ledger.database.is_asked_to_stop = lambda: self._asked is not None
            self._seen = {each.number for each in ledger.trials() if each.is_over}
            try:
                for number in range(self.question.workers):
                    if self._asked is None:
                        workers.start(number)
                self._attend(ledger, workers)
            finally:
                for name in workers.end():
                    with suppress(TrainbookError):  # what is to be told is why we are here
                        ledger.bury(name, by_us=True)
            trials, plan = ledger.trials(), ledger.plan()
            self._show(trials, plan)
        return trials, plan

    def _workers(self, stack: ExitStack) -> Workers | RayWorkers:
        given = (self.folder, self.url, self.question.workers, self.command, self.lease_seconds)
        if self.ray is not None:
            return RayWorkers(*given, address=self.ray)
        return Workers(*given, added=stack.enter_context(sharing(self.question.workers)))

    def _whole(self, trials: list[Trial], plan: dict[str, Any] | None) -> list[Trial]:
        """The trials, if there is nothing left to do; whatever was asked or happened meanwhile."""
        left = sum(not each.is_over for each in trials)
        order = None if left else self.planning.next_order(trials, plan)
        if order is not None and not order.trials and not order.refused:
            return trials
        ended = len(trials) - left
        kept = "will resume from its last checkpoint" if self._is_cut_off else "is saved"
        told = f"{ended} trial{' has' if ended == 1 else 's have'} ended; the work in progress {kept}"
        if self._asked is not None:
            raise Interrupted(f"{self._asked}: {told}")
        if order is not None and order.refused:
            raise UserError(order.refused)
        raise RunError(f"the workers exited before the end of the study: {told}. Run the same command again.")

    def _attend(self, ledger: Ledger, workers: Workers | RayWorkers) -> None:
        failed, deaths = 0, 0
        while workers.are_alive:
            if self._asked is not None:  # also those that were being started at that moment
                workers.ask_to_stop()
            time.sleep(POLL_SECONDS)
            for name, code in workers.ended():
                ledger.bury(name, by_us=self._asked is not None)
                if code == 0 or self._asked is not None:
                    continue
                if code == MORE:
                    workers.start(int(name.rsplit("-", 1)[1]))
                    continue
                if code < 0 or code in (STOPPED, UNWELL):
                    deaths += 1
                    self._tell(f"{_what_happened(code)}: another worker takes over")
                    workers.start(int(name.rsplit("-", 1)[1]))
                else:
                    failed += 1
            trials = ledger.trials()
            self._show(trials, ledger.plan())
            deaths = 0 if self._note(trials) else deaths
            if deaths > MOST_DEATHS:
                raise RunError(f"{deaths} workers died and no trial has ended: see {self.folder / LOGS}")
            if failed and not workers.are_alive and self._asked is None:
                raise RunError(f"a worker failed (log in {self.folder / LOGS}): {workers.last_words()}")

    def _note(self, trials: Sequence[Trial]) -> bool:
        """Whether trials have ended since. RunError: the last ones all failed, for the same reason."""
        new = [each for each in trials if each.is_over and each.number not in self._seen]
        self._seen |= {each.number for each in new}
        for each in new:
            reason = re.sub(r"\d+", "#", each.reason or "") if each.state == "failed" else None
            if reason is None or (self._failures and self._failures[-1] != reason):
                self._failures.clear()
            if reason is not None:
                self._failures.append(reason)
            if len(self._failures) >= SAME_FAILURES:
                raise RunError(
                    f"{len(self._failures)} trials in a row failed for the same reason: {each.reason}. Fix it and run "
                    "the same command again: these trials will be retried."
                )
        return bool(new)

    def _interrupt(self, number: int, workers: Workers | RayWorkers) -> None:
        if self._asked is not None:
            self._is_cut_off = True
            workers.kill()
            return
        self._asked = name = signal_name(number)
        workers.ask_to_stop()
        self._tell(f"{name}: the workers finish their step and save; press it again to stop at once")

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # nobody reads any more: no reason to lose what is under way
            self.say(line)

    def _show(self, trials: Sequence[Trial], plan: dict[str, Any] | None) -> None:
        with suppress(OSError):
            self.watch(trials, plan)


@dataclass
class Study(RunningStudy[StudyQuestion]):
    """A search for good values."""

    kind = "a tuning study"

    @property
    def planning(self) -> Planning:
        return Tuning(self.question)

    @property
    def size(self) -> str:
        return f"{self.question.budget}, {self.question.seeds} seeds"

    def open(self, ledger: Ledger) -> bool:
        return ledger.open(self.question.as_json(), lambda plan: extended(self.question, plan))

    def answer(self, trials: list[Trial]) -> dict[str, Any]:
        """What the whole study tells, in words, figures and a recipe; its files are written."""
        from trainbook.study.tune.conclusion import finish

        with opened(self.url, self.name) as ledger:
            plan = ledger.plan()
        assert plan is not None, "a study that has ended had a plan"
        return finish(self.question, plan, trials, self.folder)


def _what_happened(code: int) -> str:
    if code < 0:
        return f"a worker died ({signal.Signals(-code).name})"
    return "a worker was stopped by a signal" if code == STOPPED else "a worker failed"


def words_before(question: StudyQuestion) -> list[str]:
    """What will be searched, before the first trial; nothing of it where the base's own cost has to be seen first."""
    plan = first_plan(question)
    words = [] if plan is None else words_of(plan.as_json())
    if trial_guard(question.loaded):
        words.append(
            "in trials the guard skips no updates and stops diverged trials, so that all train on the same batches"
        )
    return words


def words_of(kept: dict[str, Any]) -> list[str]:
    """What is searched, once it is settled."""
    plan = Plan.from_json(kept)
    return [*plan.words, *(f"{each.path}: {each.text}" for each in plan.space.dimensions)]
