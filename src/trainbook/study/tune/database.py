"""The database of a study: one transaction at a time, and patience with a database that is away for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import BigInteger, Column, Double, Engine, Integer, MetaData, String, Table, Text, create_engine, event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from trainbook.errors import Interrupted, MissingExtra, RunError, UserError
from trainbook.terminal import echo, without_password

if TYPE_CHECKING:
    from sqlalchemy import Connection


PATIENCE = 600.0  # seconds that a database may be away, such as for a restart
FIRST_PATIENCE = 5.0  # for the first answer of whoever begins a study: more likely the address is wrong
PAUSES = (0.05, 5.0)  # seconds between two tries: the first, and the longest
TOLD_AFTER = 1.0  # seconds of waiting
THE_DATABASE = "the study's database "

T = TypeVar("T")


class Database:
    def __init__(self, url: str, first_patience: float = PATIENCE) -> None:
        """`first_patience`: how long the database may take to answer for the first time."""
        try:
            import sqlalchemy
            from sqlalchemy import exc
        except ImportError:
            raise MissingExtra("trainbook tune", "sqlalchemy", "tune") from None

        self.url, self.sql, self.errors = url, sqlalchemy, exc
        self.say: Callable[[str], None] = lambda line: echo(line, err=True)
        self.is_asked_to_stop: Callable[[], bool] = lambda: False
        self.last_away: float | None = None  # by this process's own clock; None: it never was
        self.engine, self.tables = connect(url)
        self._patience = first_patience
        self._create()
        self._patience = PATIENCE

    def _create(self) -> None:
        """Two that begin at the same moment may both find no tables: the later one then finds those of the other."""
        metadata = self.tables.metadata
        try:
            try:
                self.transact(lambda connection: metadata.create_all(connection))
            except (self.errors.IntegrityError, Refused):
                self.transact(lambda connection: metadata.create_all(connection))
        except (self.errors.DBAPIError, RunError) as error:
            told = str(error).removeprefix(THE_DATABASE) if isinstance(error, RunError) else first_line(error)
            raise UserError(f"{THE_DATABASE}{without_password(self.url)} cannot be used: {told}") from None

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Again, while the database is away: whatever was under way there is undone, or done and said twice.

        An IntegrityError comes out as it is: it says that another one was first. Any other answer is a RunError.
        """
        began = time.monotonic()
        pause, is_told = PAUSES[0], False
        while True:
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except (self.errors.OperationalError, self.errors.InterfaceError) as error:
                if not self._may_come_back(error):
                    raise Refused(f"{THE_DATABASE}refuses: {first_line(error)}") from None
                self.last_away = time.monotonic()
                waited = self.last_away - began
                if waited + pause > self._patience:
                    raise RunError(f"{THE_DATABASE}does not answer: {first_line(error)}") from None
                if waited > TOLD_AFTER and not is_told:
                    is_told = True
                    self.say(f"waiting for the database: {first_line(error)}")
                if self.is_asked_to_stop():
                    raise Interrupted("stopped while waiting for the study's database") from None
                time.sleep(pause)
                pause = min(2 * pause, PAUSES[1])
            except self.errors.IntegrityError:
                raise
            except self.errors.DBAPIError as error:
                raise Refused(f"{THE_DATABASE}refuses: {first_line(error)}") from None

    def _may_come_back(self, error: Exception) -> bool:
        """A server that does not answer may be restarted; a file is only ever in use. A full disk is neither."""
        return self.engine.dialect.name != "sqlite" or "locked" in first_line(error) or "busy" in first_line(error)

    def close(self) -> None:
        self.engine.dispose()


class Refused(RunError):
    pass


def first_line(error: Exception) -> str:
    return (str(getattr(error, "orig", None) or error).strip() or type(error).__name__).splitlines()[0]


# The ledger's tables, and the connection to where they are.


BUSY_SECONDS = 60.0  # SQLite: one writer at a time, and the others wait


@dataclass(frozen=True)
class Tables:
    metadata: MetaData
    studies: Table
    trials: Table
    reports: Table


def connect(url: str) -> tuple[Engine, Tables]:
    if url.startswith(("postgresql://", "postgres://")):  # sqlalchemy would take an older driver for it
        url = f"postgresql+psycopg://{url.partition('://')[2]}"
    # Read committed: who waited for the study's row has to see what was written meanwhile.
    options: dict[str, Any] = {"pool_pre_ping": True, "isolation_level": "READ COMMITTED"}
    if url.startswith("sqlite"):
        options = {"connect_args": {"timeout": BUSY_SECONDS}}
    try:
        if not url.startswith(("sqlite:", "postgresql+")):
            raise ArgumentError
        engine = create_engine(url, **options)
    except ImportError as error:
        raise MissingExtra("a study in PostgreSQL", str(error.name), "postgres") from None
    except (ArgumentError, NoSuchModuleError):
        raise UserError(
            "--storage: must be the address of a database, such as postgresql+psycopg://host/name, but got "
            f"'{without_password(url)}'."
        ) from None
    if engine.dialect.name == "sqlite":
        _take_transactions_seriously(engine)
    return engine, _tables()


def _take_transactions_seriously(engine: Engine) -> None:
    """A transaction locks when it begins: one that reads first and then wants to write could only fail."""

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # Python's own idea of when a transaction begins is in the way

    @event.listens_for(engine, "begin")
    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _tables() -> Tables:
    metadata = MetaData()
    studies = Table(
        "trainbook_studies",
        metadata,
        Column("name", String(200), primary_key=True),
        Column("question", Text, nullable=False),
        Column("plan", Text),
    )
    trials = Table(
        "trainbook_trials",
        metadata,
        Column("study", String(200), primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("kind", String(20), nullable=False),
        Column("values", Text, nullable=False),
        Column("arm", Integer, nullable=False),
        Column("units", Text, nullable=False),
        Column("round", Integer, nullable=False),
        Column("seed", BigInteger),  # a knob that has no end
        Column("of", Integer),
        Column("state", String(20), nullable=False),
        Column("worker", String(200)),
        Column("lease_until", Double),
        Column("attempts", Integer, nullable=False),
        Column("loss", Double),
        Column("reason", Text),
        Column("run", Text),
        Column("tokens", Double, nullable=False),
        Column("seconds", Double, nullable=False),
        Column("gpu_seconds", Double, nullable=False),
    )
    reports = Table(
        "trainbook_reports",
        metadata,
        Column("study", String(200), primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("rung", Double, primary_key=True),
        Column("loss", Double),
    )
    return Tables(metadata, studies, trials, reports)
