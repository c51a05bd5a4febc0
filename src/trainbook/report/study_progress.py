"""How far a study without an answer is, and whether it goes on: by its runs, and by its ledger where that is a file."""

from __future__ import annotations

import sqlite3
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from trainbook.bounded import json_text
from trainbook.errors import TrainbookError

Kind = Literal["tune", "ablate", "transfer", "study"]

NOT_OVER = ("waiting", "running")  # states of a trial in the ledger
MOST_WORK = 20_000_000  # instructions of SQLite: a file that somebody made up cannot keep the reader
MOST_TRIALS = 100_000
MOST_BYTES = 16 << 20  # of one value of the ledger
STARTS_SOON = 30.0  # seconds between two runs of a study, in which none is running


@dataclass(frozen=True)
class StudyProgress:
    kind: Kind  # `study` where no file says which
    is_running: bool
    ended: int  # trials, repetitions apart; of a study without a ledger, its runs
    begun: int
    running: int
    planned: int | None = None
    budget: str | None = None  # in the words of the study, where it is no number of trials
    repetitions: tuple[int, int] = (0, 0)  # ended, asked for

    @property
    def text(self) -> str:
        """`3 of 8 trials are done and 1 is running`."""
        noun = "trials" if self.kind == "tune" else "runs"
        if self.planned is not None:
            told = f"{self.ended} of {self.planned} {noun} are done"
        elif self.budget is not None:
            told = f"{self.ended} of {self.begun} {noun} started so far have ended, of a budget of {self.budget}"
        else:
            told = f"{self.ended} of {self.begun} runs started so far have ended"
        if self.repetitions[1]:
            told += f", and {self.repetitions[0]} of {self.repetitions[1]} repetitions with new seeds"
        return f"{told}; {self.running} {'is' if self.running == 1 else 'are'} running" if self.running else told

    @property
    def headline(self) -> str:
        said = "The study is running" if self.is_running else "The study was stopped before it had an answer"
        return f"{said}: {self.text}."

    @property
    def status(self) -> str:
        return "running" if self.is_running else "unfinished"


def study_progress(folder: Path, statuses: Sequence[str]) -> StudyProgress:
    """`statuses`: of its runs, as far as they have been begun; one whose process is gone is `abandoned`."""
    running, has_died = statuses.count("running"), "abandoned" in statuses
    ended = sum(status in ("finished", "diverged", "failed") for status in statuses)
    ledger = _ledger(folder / "study.db", folder.name)
    if ledger is None:
        kind: Kind = "transfer" if (folder / "question.json").is_file() else "study"
        was_stopped = has_died or "interrupted" in statuses or (folder / "answer.json").is_file()
        goes_on = running > 0 or (not was_stopped and _was_just_written(folder / "results.jsonl"))
        return StudyProgress(kind, goes_on, ended, len(statuses), running)
    kind = _kind(ledger.question)
    is_repeat = [each["kind"] == "repeat" for each in ledger.trials]
    over = [each["state"] not in NOT_OVER for each in ledger.trials]
    apart = kind == "tune"  # the runs of an ablation are all planned together
    own = [done for done, repeat in zip(over, is_repeat, strict=True) if not (apart and repeat)]
    again = [done for done, repeat in zip(over, is_repeat, strict=True) if apart and repeat]
    is_leased = any(each["state"] == "running" and (each["lease_until"] or 0) > time.time() for each in ledger.trials)
    return StudyProgress(
        kind,
        is_running=running > 0 or (is_leased and not has_died),
        ended=sum(own),
        begun=len(statuses),
        running=running,
        planned=_planned(kind, ledger),
        budget=_text(ledger.question.get("budget")) if kind == "tune" else None,
        repetitions=(sum(again), len(again)),
    )


@dataclass(frozen=True)
class _Ledger:
    question: Mapping[str, Any]
    plan: Mapping[str, Any]
    trials: Sequence[Mapping[str, Any]]


def _ledger(path: Path, name: str) -> _Ledger | None:
    """Read without a change to the file; None where there is none, or it is in use or damaged."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=0.2)) as database:
            database.row_factory = sqlite3.Row
            database.execute("pragma trusted_schema = off")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
            database.set_progress_handler(lambda: True, MOST_WORK)
            question, plan = database.execute(
                "select question, plan from trainbook_studies where name = ?", (name,)
            ).fetchone()
            asked = "select kind, state, lease_until from trainbook_trials where study = ? limit ?"
            trials = [dict(row) for row in database.execute(asked, (name, MOST_TRIALS))]
        return _Ledger(_object(question), _object(plan), trials)
    except (sqlite3.Error, OSError, TypeError, ValueError, TrainbookError):
        return None


def _object(text: Any) -> Mapping[str, Any]:
    found = json_text.loads(text) if isinstance(text, str) else {}
    return found if isinstance(found, dict) else {}


def _kind(question: Mapping[str, Any]) -> Kind:
    if question.get("kind") == "ablate":
        return "ablate"
    return "tune" if "scientific" in question else "study"


def _planned(kind: Kind, ledger: _Ledger) -> int | None:
    if kind == "tune":
        return _count(ledger.plan.get("trials"))
    return _planned_arms(ledger.question) if kind == "ablate" else None


def _planned_arms(question: Mapping[str, Any]) -> int | None:
    """As the question of an ablation counts its runs."""
    arms, data, rates = question.get("arms"), question.get("data"), question.get("rates")
    seeds, rate_seeds = _count(question.get("seeds")), _count(question.get("rate_seeds"))
    if not isinstance(arms, dict) or not isinstance(data, dict) or not isinstance(rates, list):
        return None
    if seeds is None or rate_seeds is None:
        return None
    own_rates = sum(isinstance(arm, dict) and "optimizer.learning_rate" in arm for arm in arms.values())
    searched = (1 + len(arms) - own_rates) * len(data) * len(rates)
    return searched * rate_seeds + (1 + len(arms)) * len(data) * seeds


def _was_just_written(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime < STARTS_SOON
    except OSError:
        return False


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 10**9 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) < 60 else None
