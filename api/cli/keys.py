"""`shardwright keys`: API keys, straight in the database, also while a server runs on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.database import DatabaseUrl, opened_database
from api.cli.groups import group

if TYPE_CHECKING:
    from api.service.keys import IssuedKey, KeyService

keys = group("Make, list, rotate and revoke the API keys of a server.")

KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="Identity of the key, as `keys list` shows it.")]
_DAY_S = 86_400


@contextmanager
def _key_service(database_url: str | None) -> "Iterator[KeyService]":
    from api.service.keys import KeyService
    from profiles_db import migrations

    with opened_database(database_url) as database:
        database.check()
        migrations.upgrade(database)
        yield KeyService(database)


@keys.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what will use it.")],
    scope: Annotated[str, typer.Option(metavar="read|plan|admin", help="What it may do.")] = "plan",
    tenant: Annotated[str, typer.Option(metavar="TENANT", help="Whose plans it sees.")] = "default",
    expires_days: Annotated[
        int | None, typer.Option(min=1, max=3650, metavar="N", help="End by itself after N days. [default: never]")
    ] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key and print it: the key alone on standard output, shown this once.

    From the first key on, every caller of the server needs one.

    [dim]Example[/dim]

    shardwright keys create launcher --scope plan --tenant team-a
    """
    from api.service.callers import check_tenant
    from api.service.keys import NewKey

    expires_in_s = None if expires_days is None else expires_days * _DAY_S
    new = NewKey.from_object({"name": name, "scopes": [scope], "expires_in_s": expires_in_s}, source="the key")
    with _key_service(database_url) as service:
        _print_issued(service.create(check_tenant(tenant), new))


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(metavar="TENANT", help="Only keys of this tenant.")] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """List keys, newest first; secrets are not kept, so none are shown."""
    from api.cli.render.console import show
    from api.cli.render.keys_page import keys_page

    with _key_service(database_url) as service:
        show(keys_page(service.of_tenant(tenant)))


@keys.command()
def rotate(
    key_id: KeyId,
    keep_old_hours: Annotated[
        int, typer.Option(min=0, max=720, metavar="N", help="Accept the old secret too for N hours.")
    ] = 0,
    database_url: DatabaseUrl = None,
) -> None:
    """Give a key a new secret and print it.

    [dim]Example[/dim]

    shardwright keys rotate 5f0c1d2e3a4b5c6d --keep-old-hours 24
    """
    from api.service.keys import Rotation

    with _key_service(database_url) as service:
        _print_issued(service.rotate(None, key_id, Rotation(keep_old_s=keep_old_hours * 3600)))


@keys.command()
def revoke(key_id: KeyId, database_url: DatabaseUrl = None) -> None:
    """End a key. A running server refuses it from the next request on."""
    with _key_service(database_url) as service:
        service.revoke(None, key_id)
    typer.echo(f"key {key_id} is revoked", err=True)


@keys.command("new-signing-key")
def new_signing_key(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where the private key goes; must not be there yet.")
    ],
) -> None:
    """Make the key that signs plans: the private one into a file, the public one on standard output.

    Set SHARDWRIGHT_SIGNING_KEY_FILE for the server, and give trainers the public key
    (`PlanClient(url, trusted_keys=[...])`).
    """
    from api.service.signing import Signer

    typer.echo(Signer.create(file).public_key)


def _print_issued(issued: "IssuedKey") -> None:
    row = issued.row
    typer.echo(f"key {row.key_id} of tenant {row.tenant}, scope {row.scopes}; it is not shown again:", err=True)
    typer.echo(issued.token)
