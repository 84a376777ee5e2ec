"""Schema versions, applied when a server starts."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from profiles_db.engine import Database

_LOCK_KEY = 0x5348_4152_4457
"""Arbitrary, fixed: servers that start together on PostgreSQL migrate one after the other."""


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the schema up to a revision, in one transaction."""
    with database.engine.execution_options(begin_immediate=True).begin() as connection:
        _lock(connection)
        command.upgrade(_config(connection), revision)


def downgrade(database: Database, revision: str) -> None:
    """Bring the schema down to a revision (`base` is empty), in one transaction."""
    with database.engine.execution_options(begin_immediate=True).begin() as connection:
        _lock(connection)
        command.downgrade(_config(connection), revision)


def known_revisions() -> frozenset[str]:
    """All revisions that this release can bring up to date."""
    script = ScriptDirectory(str(Path(__file__).parent))
    return frozenset(step.revision for step in script.walk_revisions())


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
