"""`shardwright db`: backup, restore and retention of the server's database."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.database import DatabaseUrl, opened_database
from api.cli.groups import group

db = group("Back up, restore and prune the database of a server.")
_DAY_US = 86_400 * 1_000_000


@db.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the copy goes; must not be there yet.")],
    database_url: DatabaseUrl = None,
) -> None:
    """Copy a SQLite database into one file while it is served. For PostgreSQL, use pg_dump.

    [dim]Example[/dim]

    shardwright db backup /backup/shardwright-$(date +%F).db
    """
    from profiles_db.backup import backup as copy

    with opened_database(database_url) as database:
        size = copy(database, file)
    typer.echo(f"{file}: {size} bytes", err=True)


@db.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A copy made by `db backup`.")],
    database_url: DatabaseUrl = None,
) -> None:
    """Put a backup in the place of the database; stop the server first. What was there is kept beside it."""
    from profiles_db.backup import restore as put_back

    with opened_database(database_url) as database:
        kept = put_back(database, file)
    if kept is not None:
        typer.echo(f"what was there before is {kept}", err=True)
    typer.echo(f"restored {file}", err=True)


@db.command()
def prune(
    days: Annotated[int, typer.Option(min=1, metavar="N", help="Delete what is older than N days.")],
    keep: Annotated[
        int, typer.Option(min=1, metavar="N", help="Newest revisions of each lineage that stay in any case.")
    ] = 20,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Delete old revisions, plans and documents that nothing points at, also while a server runs.

    Active revisions and those that were active since then always stay.

    [dim]Example[/dim]

    shardwright db prune --days 180 --keep 20
    """
    from dataclasses import asdict

    from profiles_db import migrations, retention
    from profiles_db.tables import now_us

    with opened_database(database_url) as database:
        database.check()
        migrations.upgrade(database)
        with database.write() as session:
            done = retention.prune(session, keep=keep, before_us=now_us() - days * _DAY_US)
            if dry_run:
                session.rollback()
        words = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in asdict(done).items())
        typer.echo(f"{'would delete' if dry_run else 'deleted'}: {words}", err=True)
