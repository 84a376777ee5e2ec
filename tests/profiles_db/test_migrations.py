from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from profiles_db import migrations
from profiles_db.engine import Database
from profiles_db.tables import Base


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
