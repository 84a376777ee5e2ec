"""The database of a server, for commands that work on it without one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from profiles_db.engine import Database

DatabaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Database of the server. [default: as for `serve`]"),
]


@contextmanager
def opened_database(database_url: str | None) -> "Iterator[Database]":
    """The database of a server, by its URL or by the settings."""
    from api.settings import Settings
    from profiles_db.engine import Database

    given = {} if database_url is None else {"database_url": database_url}
    database = Database(Settings.model_validate(given).database_url.get_secret_value())
    try:
        yield database
    finally:
        database.close()
