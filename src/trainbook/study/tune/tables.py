"""The ledger's tables, and the connection to where they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Double, Engine, Integer, MetaData, String, Table, Text, create_engine, event
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from trainbook.errors import MissingExtra, UserError
from trainbook.terminal import without_password

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
