"""The ledger of a study: every trial, who works on it, and what came of it. One database for all workers.

SQLite on one machine, PostgreSQL for many: the same tables and statements. Every change is one transaction that holds
the study's row, so that no two workers take one trial, and none is lost. A trial is lent, not given: its worker renews
the lease, and one whose lease ran out is lent again, and goes on from its own checkpoint. All can be said twice, for a
connection may break when the database has the answer and the worker does not.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainbook.bounded import json_text
from trainbook.errors import MissingExtra, ResumeError, RunFolderError
from trainbook.study.tune.budget import parse_budget
from trainbook.study.tune.database import PATIENCE, Database
from trainbook.study.tune.trial import WAIT, Order, Planner, Spent, Trial, TrialReport

if TYPE_CHECKING:
    from sqlalchemy import Connection

LEASE_SECONDS = 60.0
Extend = Callable[[Mapping[str, Any]], Mapping[str, Any]]
IsMore = Callable[[str, Any, Any], bool]  # whether a study may go on with the new value of a name, in place of the old
MOST_ATTEMPTS = 3  # a trial that takes its workers down with it is not lent for ever


class Ledger:
    def __init__(
        self, url: str, study: str, lease_seconds: float = LEASE_SECONDS, first_patience: float = PATIENCE
    ) -> None:
        self.url, self.study, self.lease_seconds = url, study, lease_seconds
        self.database = Database(url, first_patience)
        self._sql, self._errors, self._tables = self.database.sql, self.database.errors, self.database.tables
        self._transact = self.database.transact

    # The study

    def open(self, question: Mapping[str, Any], extend: Extend = dict, is_more: IsMore | None = None) -> bool:
        """Begin the study, or resume it: the question has to be the same, but for more budget or seeds, or what
        `is_more` allows of a name, its old and its new value.

        True: it is extended; `extend` makes the plan of the larger study from the one so far. Trials that were dropped
        because the budget was spent are waiting again.
        """
        text = json.dumps(question, sort_keys=True, default=str)

        def begin(connection: Connection) -> str:
            studies = self._tables.studies
            known = connection.execute(
                self._sql.select(studies.c.question).where(studies.c.name == self.study)
            ).scalar()
            if known is None:
                connection.execute(studies.insert().values(name=self.study, question=text, plan=None))
            return known or text

        for _ in range(2):
            try:
                before = self._transact(begin)
                break
            except self._errors.IntegrityError:  # another one began it at the same moment
                continue
        if not is_extended(json_text.loads(before), json_text.loads(text), self.study, is_more):
            return False
        self._transact(lambda connection: self._extend(connection, text, extend))
        return True

    def is_begun(self) -> bool:
        studies = self._tables.studies
        asked = self._sql.select(studies.c.name).where(studies.c.name == self.study)
        return self._transact(lambda connection: connection.execute(asked).scalar()) is not None

    def question(self) -> dict[str, Any]:
        studies = self._tables.studies
        asked = self._sql.select(studies.c.question).where(studies.c.name == self.study)
        return json_text.loads(self._transact(lambda connection: connection.execute(asked).scalar_one()))

    def plan(self) -> dict[str, Any] | None:
        return self._transact(lambda connection: self._locked(connection))

    # Workers

    def take(
        self, worker: str, planner: Planner, is_spent: Spent = lambda trials: False, avoided: Collection[int] = ()
    ) -> Trial | Literal["wait"] | None:
        """A trial to work on; "wait" while others work on what the next ones depend on; None: the study is over.

        `avoided` are lent only if there is no other one.
        """

        def lend(connection: Connection) -> Trial | Literal["wait"] | None:
            plan = self._locked(connection)
            now = self._now(connection)
            if self._may_reclaim(connection, now):
                self._reclaim(connection, now)
            trials = self._trials(connection)
            mine = [each for each in trials if each.state == "running" and each.worker == worker]
            if mine:  # lent before, but the answer never came
                return mine[0]
            if is_spent(trials):
                trials = self._drop(connection, trials)
            waiting = [each for each in trials if each.state == "waiting"]
            if not waiting:
                order = planner(trials, plan)
                self._carry_out(connection, order, plan)
                if order.refused:
                    return None
                waiting = list(order.trials)
            if not waiting:
                return WAIT if any(each.state == "running" for each in trials) else None
            chosen = next((each for each in waiting if each.number not in avoided), waiting[0])
            lent = replace(chosen, state="running", worker=worker, attempts=chosen.attempts + 1)
            self._update(connection, lent, lease_until=now + self.lease_seconds)
            return lent

        return self._transact(lend)

    def renew(self, trial: Trial, worker: str, seconds: float = 0.0, gpu_seconds: float = 0.0) -> bool:
        """Still at it, for so many seconds more. False: it is another worker's by now, or over."""

        def extend(connection: Connection) -> bool:
            trials = self._tables.trials
            done = connection.execute(
                trials.update()
                .where(self._is(trial), trials.c.worker == worker, trials.c.state == "running")
                .values(
                    lease_until=self._now(connection) + self.lease_seconds,
                    seconds=trials.c.seconds + seconds,
                    gpu_seconds=trials.c.gpu_seconds + gpu_seconds,
                )
            )
            return done.rowcount == 1

        return self._transact(extend)

    def report(self, trial: Trial, rung: float, loss: float, among: Collection[int]) -> list[float]:
        """Write down what a trial had at a rung, and read what the others that it is compared with had there."""

        def write(connection: Connection) -> list[float]:
            self._locked(connection)
            reports = self._tables.reports
            at_rung = self._sql.and_(reports.c.study == self.study, reports.c.rung == rung)
            rows = connection.execute(self._sql.select(reports).where(at_rung)).all()
            if not any(row.number == trial.number for row in rows):
                kept = loss if math.isfinite(loss) else None
                connection.execute(reports.insert().values(study=self.study, number=trial.number, rung=rung, loss=kept))
            same = [row for row in rows if row.number != trial.number and row.number in among]
            return [math.nan if row.loss is None else row.loss for row in same]

        return self._transact(write)

    def reports(self) -> list[TrialReport]:
        asked = self._sql.select(self._tables.reports).where(self._tables.reports.c.study == self.study)
        rows = self._transact(lambda connection: connection.execute(asked).all())
        return [TrialReport(row.number, row.rung, row.loss) for row in rows]

    def finish(self, trial: Trial, worker: str) -> bool:
        """The trial as it ended. False: it is over already, and another worker's answer counts.

        One whose lease ran out while it could not say so still has an answer, and it may come first.
        """

        def write(connection: Connection) -> bool:
            self._locked(connection)
            now = self._find(connection, trial.number)
            if now.is_over:  # written before, but the answer never came; or by another one
                return now.worker == worker and now.state == trial.state
            ended = replace(trial, worker=worker, attempts=now.attempts)
            self._update(connection, ended, lease_until=None, without=("seconds", "gpu_seconds"))
            return True

        return self._transact(write)

    def give_back(self, trial: Trial, worker: str) -> None:
        """Interrupted and saved: whoever takes it goes on, and it is no failed attempt."""

        def write(connection: Connection) -> None:
            self._locked(connection)
            now = self._find(connection, trial.number)
            if now.worker == worker and now.state == "running":
                again = replace(now, state="waiting", worker=None, attempts=max(0, now.attempts - 1))
                self._update(connection, again, lease_until=None)

        self._transact(write)

    def bury(self, worker: str, by_us: bool = False) -> None:
        """A worker is known to be dead: nobody has to wait for its lease to run out.

        `by_us`: whoever stops a study at once has killed it, which says nothing of its trial.
        """

        def write(connection: Connection) -> None:
            self._locked(connection)
            trials = self._tables.trials
            mine = (trials.c.study == self.study, trials.c.worker == worker, trials.c.state == "running")
            attempts = trials.c.attempts - (1 if by_us else 0)
            connection.execute(trials.update().where(*mine).values(lease_until=0.0, attempts=attempts))
            self._reclaim(connection, self._now(connection), worker)

        self._transact(write)

    def try_failed_again(self) -> int:
        """On a restart, failed trials wait again, since their cause may be mended. Those out of attempts stay failed,
        except the base, which all others are compared with."""

        def write(connection: Connection) -> int:
            self._locked(connection)
            trials = self._trials(connection)
            again = [e for e in trials if e.state == "failed" and (e.attempts < MOST_ATTEMPTS or e.kind == "base")]
            for each in again:
                attempts = 0 if each.kind == "base" else each.attempts
                waiting = replace(each, state="waiting", worker=None, reason=None, attempts=attempts)
                self._update(connection, waiting, lease_until=None)
            return len(again)

        return self._transact(write)

    # Readers

    def trials(self) -> list[Trial]:
        return self._transact(self._trials)

    def close(self) -> None:
        self.database.close()

    # Inside a transaction

    def _locked(self, connection: Connection) -> dict[str, Any] | None:
        """The plan, and the study's row until the end of the transaction. SQLite locks all of the file anyway."""
        studies = self._tables.studies
        held = self._sql.select(studies.c.plan).where(studies.c.name == self.study).with_for_update()
        text = connection.execute(held).scalar()
        return None if text is None else json_text.loads(text)

    def _extend(self, connection: Connection, question: str, extend: Extend) -> None:
        studies, plan = self._tables.studies, self._locked(connection)
        changed = {"question": question} | ({} if plan is None else {"plan": json.dumps(extend(plan), default=str)})
        connection.execute(studies.update().where(studies.c.name == self.study).values(**changed))
        for each in self._trials(connection):
            if each.state == "dropped":
                self._update(connection, replace(each, state="waiting", reason=None), lease_until=None)

    def _carry_out(self, connection: Connection, order: Order, plan: Mapping[str, Any] | None) -> None:
        kept = {**(plan or {}), **(order.plan or {})}
        if kept != (plan or {}):
            studies = self._tables.studies
            text = json.dumps(kept, default=str)
            connection.execute(studies.update().where(studies.c.name == self.study).values(plan=text))
        for trial in order.trials:
            connection.execute(self._tables.trials.insert().values(study=self.study, **trial.as_row()))

    def _may_reclaim(self, connection: Connection, now: float) -> bool:
        """Not when the database, or we, were away until just now: the others could not renew their leases either."""
        away = self.database.last_away
        if away is not None and time.monotonic() - away < self.lease_seconds:
            return False
        if connection.dialect.name != "postgresql":
            return True
        began = self._sql.text("select extract(epoch from pg_postmaster_start_time())")
        return now - float(connection.execute(began).scalar_one()) >= self.lease_seconds

    def _reclaim(self, connection: Connection, now: float, worker: str | None = None) -> None:
        trials = self._tables.trials
        late = [trials.c.study == self.study, trials.c.state == "running", trials.c.lease_until < now]
        late += [] if worker is None else [trials.c.worker == worker]
        # Each row is held: a lease that is renewed at this moment is either seen, or has to wait and then fails.
        for row in connection.execute(self._sql.select(trials).where(*late).with_for_update()).all():
            trial = Trial.from_row(row)
            if trial.attempts >= MOST_ATTEMPTS:
                reason = f"{trial.attempts} workers died in it"
                self._update(connection, replace(trial, state="failed", reason=reason), lease_until=None)
            else:
                self._update(connection, replace(trial, state="waiting", worker=None), lease_until=None)

    def _drop(self, connection: Connection, trials: Sequence[Trial]) -> list[Trial]:
        """The budget is spent: searched trials that nobody has begun never will be."""
        found = []
        for each in trials:
            if each.state == "waiting" and each.kind == "search" and each.attempts == 0 and each.seconds == 0:
                each = replace(each, state="dropped", reason="the budget was spent before it started")
                self._update(connection, each, lease_until=None)
            found.append(each)
        return found

    def _trials(self, connection: Connection) -> list[Trial]:
        trials = self._tables.trials
        rows = connection.execute(
            self._sql.select(trials).where(trials.c.study == self.study).order_by(trials.c.number)
        )
        return [Trial.from_row(row) for row in rows]

    def _find(self, connection: Connection, number: int) -> Trial:
        return next(each for each in self._trials(connection) if each.number == number)

    def _update(
        self, connection: Connection, trial: Trial, lease_until: float | None, without: Sequence[str] = ()
    ) -> None:
        row = {name: value for name, value in trial.as_row().items() if name not in without}
        connection.execute(self._tables.trials.update().where(self._is(trial)).values(**row, lease_until=lease_until))

    def _is(self, trial: Trial) -> Any:
        trials = self._tables.trials
        return self._sql.and_(trials.c.study == self.study, trials.c.number == trial.number)

    def _now(self, connection: Connection) -> float:
        """By one clock for all workers: the database's, where they are on several machines."""
        if connection.dialect.name == "sqlite":
            return time.time()
        return float(connection.execute(self._sql.text("select extract(epoch from clock_timestamp())")).scalar_one())


@contextmanager
def opened(
    url: str, study: str, lease_seconds: float = LEASE_SECONDS, first_patience: float = PATIENCE
) -> Iterator[Ledger]:
    ledger = Ledger(url, study, lease_seconds, first_patience)
    try:
        yield ledger
    finally:
        ledger.close()


def sqlite_url(path: Path) -> str:
    """The address of a file, whatever its path holds: in an address `?` and `%` have a meaning of their own."""
    try:
        from sqlalchemy import URL, make_url
    except ImportError:
        raise MissingExtra("trainbook tune", "sqlalchemy", "tune") from None
    file = str(path.absolute())
    with suppress(UnicodeEncodeError):  # bytes that are no text
        url = URL.create("sqlite", database=file).render_as_string(hide_password=False)
        if make_url(url).database == file:  # before 2.1, SQLAlchemy had no way to write a `?`
            return url
    raise RunFolderError(f"{path.parent}: a study's database cannot have this path: choose another --runs-dir.")


# A resumed study has to ask the question it was begun with; it may only be given more budget and more seeds


def is_extended(before: Mapping[str, Any], now: Mapping[str, Any], study: str, is_more: IsMore | None = None) -> bool:
    """Whether it has more than before, such as budget or seeds. ResumeError: anything else has changed."""
    old, new = _flat(before), _flat(now)
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    refused = [name for name in changed if not (is_more or _is_more)(name, old.get(name), new.get(name))]
    if not refused:
        return bool(changed)
    lines = [f"the study {study} was started with other settings:"]
    lines += [f"  {name}: {_shown(old.get(name))} -> {_shown(new.get(name))}" for name in refused]
    more = "a larger budget in the same unit, or by more seeds" if is_more is None else "more seeds, arms or data sets"
    lines.append(f"Use the old values, or start a new study under another --name. A study can be extended by {more}.")
    raise ResumeError("\n".join(lines))


def _is_more(name: str, old: Any, new: Any) -> bool:
    if name == "seeds":
        return new > old
    if name != "budget":
        return False
    before, now = parse_budget(old), parse_budget(new)
    return before.unit == now.unit and now.amount > before.amount


def _flat(question: Mapping[str, Any]) -> dict[str, Any]:
    """By knob: its value in the base, or its role and range."""
    found: dict[str, Any] = {}
    for name, value in question.items():
        if name == "configuration":
            found |= value
        elif name in ("scientific", "nuisance") and value is not None:
            found |= {f"{name} {each['path']}": {k: v for k, v in each.items() if k != "path"} for each in value}
        else:
            found[name] = value
    return found


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = [f"{name} {part}" for name, part in value.items() if part not in (None, [], ()) and part is not False]
        return ", ".join(parts)
    return "not set" if value is None else str(value)
