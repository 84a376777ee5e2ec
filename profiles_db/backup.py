"""Copies of a SQLite database while it is served, and the way back. PostgreSQL has `pg_dump` and `pg_restore`."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from planner.schema.errors import ShardwrightError
from profiles_db import migrations
from profiles_db.engine import Database

_PAGES_AT_ONCE = 4096
_BESIDE = ("", "-wal", "-shm", ".queue", ".queue-wal", ".queue-shm")
"""What belongs to a database file: SQLite's own files, and the queue, which is made anew from the jobs."""


class BackupRefused(ShardwrightError):
    """A backup that cannot be made, or a file that is none."""

    code = "backup_refused"


def backup(database: Database, target: Path) -> int:
    """Copy a SQLite database into one file, as it is at one moment; servers go on. Returns the size in bytes.

    Raises:
        BackupRefused: it is PostgreSQL, the target is there already, or cannot be written.
    """
    source = _file(database)
    if target.exists():
        raise BackupRefused(f"{target} is there already; name another file")
    if not source.exists():
        raise BackupRefused(f"there is no database at {source}")
    partial = target.with_name(f"{target.name}.partial")
    try:
        with closing(sqlite3.connect(source)) as here, closing(sqlite3.connect(partial)) as there:
            here.backup(there, pages=_PAGES_AT_ONCE)
            there.execute("PRAGMA journal_mode = DELETE")
        _check(partial)
        partial.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise BackupRefused(f"cannot write {target}: {error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def restore(database: Database, source: Path) -> Path | None:
    """Put a backup in the place of a SQLite database that nobody serves, and bring its schema up to date.

    Returns where the database that was there is kept now; None when there was none.

    Raises:
        BackupRefused: it is PostgreSQL, or the file is no backup of ours.
        DatabaseInUse: a server holds the database.
    """
    target = _file(database)
    _check(source)
    database.claim_file()
    database.engine.dispose()
    partial = target.with_name(f"{target.name}.partial")
    try:
        with _read_only(source) as here, closing(sqlite3.connect(partial)) as there:
            here.backup(there, pages=_PAGES_AT_ONCE)
        kept = _set_aside(target)
        partial.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise BackupRefused(f"cannot restore {source}: {error}") from None
    finally:
        partial.unlink(missing_ok=True)
    migrations.upgrade(database)
    return kept


def _file(database: Database) -> Path:
    if database.path is None:
        raise BackupRefused(
            "this is PostgreSQL: use pg_dump --format=custom --file=FILE, and pg_restore into an empty database "
            "(docs/operations.md)"
        )
    return database.path


def _set_aside(target: Path) -> Path | None:
    if not target.exists():
        return None
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    kept = target.with_name(f"{target.name}.before-{stamp}")
    for ending in _BESIDE:
        file = target.with_name(f"{target.name}{ending}")
        if file.exists():
            file.rename(kept.with_name(f"{kept.name}{ending}"))
    return kept


def _read_only(path: Path) -> "closing[sqlite3.Connection]":
    return closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True))


def _check(path: Path) -> None:
    """Refuse what is not a whole database of ours."""
    if not path.is_file():
        raise BackupRefused(f"there is no file {path}")
    try:
        with _read_only(path) as connection:
            (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.Error as error:
        raise BackupRefused(f"{path} is no backup of ours: {error}") from None
    if verdict != "ok" or len(versions) != 1:
        raise BackupRefused(f"{path} is damaged: {verdict}; restore another backup")
    if versions[0][0] not in migrations.known_revisions():
        raise BackupRefused(
            f"{path} was made by a newer release (schema {versions[0][0]}); restore it with that one"
        )
