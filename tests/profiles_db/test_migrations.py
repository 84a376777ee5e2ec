from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from profiles_db import migrations
from profiles_db.engine import Database
from profiles_db.tables import Base, JobPriority


def _tables(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names()) - {"alembic_version"}


def test_up_is_the_model_and_down_is_nothing(database_url: str) -> None:
    database = Database(database_url)
    for _ in range(2):
        migrations.upgrade(database)
        assert _tables(database) == set(Base.metadata.tables)
        migrations.upgrade(database)
        migrations.downgrade(database, "base")
        assert _tables(database) == set()
    database.close()


def test_rows_from_before_tenants_belong_to_the_default_one_and_survive_the_way_back(database_url: str) -> None:
    database = Database(database_url)
    migrations.upgrade(database, "0001")
    hashes = {"d": "sha256:d", "r": "sha256:r", "p": "sha256:p", "j": "default:sha256:r:0.1.0:1"}
    statements = (
        "INSERT INTO documents VALUES (:d, 'model', 'm', 3, 1, :body)",
        "INSERT INTO requests VALUES (:r, :d, :d, NULL, 2, :body)",
        "INSERT INTO plans VALUES (:p, :r, :d, :d, '0.1.0', 'm', 'feasible', 8, 5, 6, 0.5, 3, :body)",
        "INSERT INTO jobs VALUES (:j, 'default', :r, '0.1.0', 1, 'succeeded', 1, 0, :p, NULL, 4, 5, 6)",
        """INSERT INTO job_events VALUES (:j, 1, 7, '{"message": "x"}')""",
        "INSERT INTO executors VALUES ('e', 8)",
    )
    tables = ("documents", "requests", "plans", "jobs", "job_events", "executors")

    def rows() -> list[dict]:
        with database.read() as session:
            return [dict(session.execute(text(f"SELECT * FROM {table}")).mappings().one()) for table in tables]

    with database.write() as session:
        for statement in statements:
            names = {name: value for name, value in hashes.items() if f":{name}" in statement}
            more = {"body": b"abc"} if ":body" in statement else {}
            session.execute(text(statement), names | more)
    before = rows()
    migrations.upgrade(database, "0002")
    after = rows()
    for old, new in zip(before, after, strict=True):
        added = {name: value for name, value in new.items() if name not in old}
        assert old == {name: new[name] for name in old}
        assert added.items() <= {"tenant": "default", "submitted_by": "anonymous"}.items()
    migrations.downgrade(database, "0001")
    assert rows() == before
    database.close()


def test_autogenerate_finds_nothing_to_do(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_names_of_constraints_are_the_same_as_in_the_model(database: Database) -> None:
    inspector = inspect(database.engine)
    for name, table in Base.metadata.tables.items():
        found = {index["name"] for index in inspector.get_indexes(name) if not index.get("duplicates_constraint")}
        assert found == {index.name for index in table.indexes}
        keys = {key["name"] for key in inspector.get_foreign_keys(name)}
        assert keys == {constraint.name for constraint in table.foreign_key_constraints}


def test_jobs_from_before_priorities_keep_their_events_and_wait_as_launchers(database_url: str) -> None:
    database = Database(database_url)
    migrations.upgrade(database, "0002")
    statements = (
        "INSERT INTO documents VALUES ('t', 'sha256:d', 'model', 'm', 3, 1, :body)",
        "INSERT INTO requests VALUES ('t', 'sha256:r', 'sha256:d', 'sha256:d', NULL, 2, :body)",
        "INSERT INTO jobs VALUES ('j', 't', 'sha256:r', '0.1.0', 1, 'k', 'running', 2, 1, NULL, NULL, 4, 5, NULL)",
        """INSERT INTO job_events VALUES ('j', 1, 7, '{"message": "x"}')""",
    )
    with database.write() as session:
        for statement in statements:
            session.execute(text(statement), {"body": b"abc"} if ":body" in statement else {})

    def rows() -> list[dict]:
        with database.read() as session:
            tables = ("jobs", "job_events")
            return [dict(session.execute(text(f"SELECT * FROM {table}")).mappings().one()) for table in tables]

    before = rows()
    migrations.upgrade(database, "0003")
    job, event = rows()
    assert job == before[0] | {"priority": JobPriority.LAUNCHER, "is_released": True}
    assert event == before[1]
    with database.write() as session:
        session.execute(text("UPDATE jobs SET state = 'cancelled'"))
    migrations.downgrade(database, "0002")
    assert rows() == [before[0] | {"state": "failed"}, before[1]]
    database.close()
