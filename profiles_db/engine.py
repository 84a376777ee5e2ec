"""One database: SQLite in a file by default, PostgreSQL by URL. Both with explicit transactions."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from planner.schema.errors import ShardwrightError

BUSY_TIMEOUT_MS = 30_000
"""How long a SQLite writer waits for another one."""
IDLE_TRANSACTION_S = 30.0
"""How long PostgreSQL waits for the next statement of a transaction."""


class InvalidDatabaseUrl(ShardwrightError):
    """A database URL that this service cannot use."""

    code = "invalid_database_url"


class DatabaseInUse(ShardwrightError):
    """Another process already serves this SQLite file."""

    code = "database_in_use"


class DatabaseUnavailable(ShardwrightError):
    """The database cannot be reached."""

    code = "database_unavailable"


class Database:
    """Engine and transactions. `read` and `write` each are one transaction, committed at the end.

    On SQLite a write takes the write lock when it begins, so that it can neither deadlock nor fail half-way
    because another writer came between its reads and its writes. On PostgreSQL a transaction whose process stands
    still for `idle_transaction_s` seconds is ended by the database, or its locks would hold up all others.
    """

    def __init__(self, url: str, *, pool_size: int = 10, idle_transaction_s: float = IDLE_TRANSACTION_S) -> None:
        self.url = parse_url(url)
        self.idle_transaction_s = idle_transaction_s
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = (
            _sqlite_engine(self.url)
            if self.is_sqlite
            else _postgresql_engine(self.url, pool_size, idle_transaction_s)
        )
        self._writer = self.engine.execution_options(begin_immediate=True)
        self._lock: IO[str] | None = None

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that may write."""
        with Session(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return Path(self.url.database or "") if self.is_sqlite else None

    def claim_file(self) -> None:
        """Make this process the only one that works on the SQLite file; nothing on PostgreSQL.

        Raises:
            DatabaseInUse: another process holds the file.
        """
        if self.path is None or self._lock is not None:
            return
        lock = self.path.with_name(f"{self.path.name}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise DatabaseInUse(
                f"{self.path} is in use by another server; stop it, or give this one its own --database-url "
                "(several servers on one database need PostgreSQL)"
            ) from None
        self._lock = lock

    def check(self) -> None:
        """Connect once.

        Raises:
            DatabaseUnavailable: that is not possible.
        """
        try:
            with self.read() as session:
                session.execute(text("SELECT 1"))
        except DBAPIError as error:
            raise DatabaseUnavailable(f"cannot use {self.describe()}: {str(error.orig).strip()}") from None

    def close(self) -> None:
        """Close every connection and give the file back."""
        self.engine.dispose()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def describe(self) -> str:
        """The URL without its password, for logs."""
        return self.url.render_as_string(hide_password=True)


def is_outage(error: BaseException) -> bool:
    """Whether the database could not be reached or went away, so that the same statement may work later."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, OperationalError | InterfaceError | PoolTimeout)


def parse_url(text: str) -> URL:
    """A URL with the driver that this package uses.

    Raises:
        InvalidDatabaseUrl: not a URL, another database, or SQLite without a file.
    """
    try:
        url = make_url(text)
    except ArgumentError:
        raise InvalidDatabaseUrl(
            "the database URL cannot be read; write sqlite:////path/to/file.db or postgresql://user@host/name"
        ) from None
    match url.get_backend_name():
        case "sqlite":
            if url.database in (None, "", ":memory:"):
                raise InvalidDatabaseUrl("SQLite needs a file, as in sqlite:////path/to/shardwright.db")
            return url.set(drivername="sqlite+pysqlite")
        case "postgresql" | "postgres":
            return url.set(drivername="postgresql+psycopg")
        case name:
            raise InvalidDatabaseUrl(f"no support for {name!r}; use a sqlite:// or a postgresql:// URL")


def _sqlite_engine(url: URL) -> Engine:
    Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, pool_size=10, max_overflow=40, pool_timeout=60, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("begin_immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def _postgresql_engine(url: URL, pool_size: int, idle_transaction_s: float) -> Engine:
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=True,
        pool_timeout=60,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET idle_in_transaction_session_timeout = {round(1000 * idle_transaction_s)}")
        cursor.close()
        connection.commit()

    return engine
