"""`shardwright serve`."""

from typing import Annotated, Literal

import typer


def serve(
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Listen here. [default: 127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="N", help="Port; 0 takes a free one. [default: 8000]")
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="SQLAlchemy URL. [default: a SQLite file in your data folder]"),
    ] = None,
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Serve other machines though nothing asks who calls: no key was made."),
    ] = False,
    require_keys: Annotated[
        bool, typer.Option("--require-keys", help="Ask every caller for a key, also before the first is made.")
    ] = False,
    log_format: Annotated[
        Literal["console", "json"] | None, typer.Option(help="How log lines look. [default: console]")
    ] = None,
) -> None:
    """Serve plans over HTTP, on this machine only unless told otherwise.

    Make a key first to serve other machines: from then on every caller needs one (`shardwright keys`).

    What is not given is taken from SHARDWRIGHT_HOST, SHARDWRIGHT_PORT, SHARDWRIGHT_DATABASE_URL and so on.

    [dim]Examples[/dim]

    shardwright serve

    shardwright serve --port 8080 --database-url sqlite:///shardwright.db

    shardwright keys create launcher && shardwright serve --host 0.0.0.0
    """
    from api.http import serve as run

    run(
        host=host,
        port=port,
        database_url=database_url,
        allow_remote=allow_remote or None,
        require_keys=require_keys or None,
        log_format=log_format,
    )
