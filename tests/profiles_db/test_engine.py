import threading

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from profiles_db import migrations
from profiles_db.engine import Database, DatabaseInUse, InvalidDatabaseUrl, is_outage
from profiles_db.tables import RequestRow


def test_sqlite_is_set_up_by_itself(tmp_path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'new folder' / 'x.db'}")
    with database.read() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA foreign_keys")) == 1
        assert session.scalar(text("PRAGMA busy_timeout")) == 30_000
    database.close()


def test_foreign_keys_are_enforced(database: Database) -> None:
    row = RequestRow(
        tenant="default",
        request_hash="sha256:1",
        model_hash="sha256:2",
        cluster_hash="sha256:2",
        created_at_us=0,
        rest=b"",
    )
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(row)


def test_a_failed_write_leaves_nothing(database: Database) -> None:
    insert = text("INSERT INTO executors VALUES ('a', 0, '', '', 0)")

    def write_twice() -> None:
        with database.write() as session:
            session.execute(insert)
            session.execute(insert)

    with pytest.raises(IntegrityError):
        write_twice()
    with database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM executors")) == 0


def test_readers_and_writers_in_threads_lose_nothing(database: Database) -> None:
    with database.write() as session:
        session.execute(text("INSERT INTO executors VALUES ('a', 0, '', '', 0)"))

    def count_up() -> None:
        for _ in range(20):
            with database.write() as session:
                query = "SELECT heartbeat_at_us FROM executors WHERE executor_id = 'a'"
                lock = "" if database.is_sqlite else " FOR UPDATE"
                value = session.scalar(text(query + lock))
                session.execute(
                    text("UPDATE executors SET heartbeat_at_us = :v WHERE executor_id = 'a'"), {"v": value + 1}
                )

    threads = [threading.Thread(target=count_up) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as session:
        assert session.scalar(text("SELECT heartbeat_at_us FROM executors")) == 160


def test_a_transaction_that_stands_still_gives_its_locks_back(postgresql_url: str) -> None:
    still, other = Database(postgresql_url, idle_transaction_s=0.5), Database(postgresql_url)
    migrations.upgrade(other)
    insert = text("INSERT INTO executors VALUES ('a', :at, '', '', 0)")

    def stand_still() -> None:
        with still.write() as stopped:
            stopped.execute(insert, {"at": 1})
            with other.write() as session:
                session.execute(insert, {"at": 2})

    with pytest.raises(DBAPIError) as lost:
        stand_still()
    assert is_outage(lost.value)
    with still.read() as session:
        assert session.scalar(text("SELECT heartbeat_at_us FROM executors")) == 2
    still.close()
    other.close()


def test_one_process_holds_a_sqlite_file(tmp_path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    first, second = Database(url), Database(url)
    first.claim_file()
    with pytest.raises(DatabaseInUse, match="in use by another server"):
        second.claim_file()
    first.close()
    second.claim_file()
    second.close()


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://host/db", "sqlite://", "sqlite:///:memory:"])
def test_urls_that_cannot_work_are_refused(url: str) -> None:
    with pytest.raises(InvalidDatabaseUrl):
        Database(url)


def test_the_password_is_not_shown() -> None:
    assert "secret" not in Database("postgresql://user:secret@localhost/db").describe()
