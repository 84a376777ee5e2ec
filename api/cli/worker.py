"""`shardwright worker`."""

from typing import Annotated, Literal

import typer


def worker(
    database_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The PostgreSQL database of the server. [default: as for `serve`]"),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Searches at a time, the same for all. [default: half of the cores]"),
    ] = None,
    log_format: Annotated[
        Literal["console", "json"] | None, typer.Option(help="How log lines look. [default: console]")
    ] = None,
) -> None:
    """Run searches for servers on the same PostgreSQL database, until a signal comes.

    Any number of workers may run, on any machine that reaches the database. A worker that dies loses nothing: after
    half a minute the others take its jobs over. `serve` searches too, unless SHARDWRIGHT_EMBEDDED_WORKER=false.

    [dim]Example[/dim]

    shardwright worker --database-url postgresql://planner@db/shardwright --slots 4
    """
    from api.settings import Settings
    from api.worker import run

    given = {"database_url": database_url, "max_concurrent_solves": slots, "log_format": log_format}
    run(Settings.model_validate({name: value for name, value in given.items() if value is not None}))
