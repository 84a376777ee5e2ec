"""Which addresses may be served while nothing asks who calls."""

from api.settings import Settings
from planner.schema.errors import ShardwrightError


class RemoteAddressRefused(ShardwrightError):
    """The server was asked to listen where other machines can reach it."""

    code = "remote_address_refused"


def check_address(settings: Settings, *, asks_who_calls: bool) -> None:
    """Refuse addresses that other machines can reach, unless callers need a key or the operator trusts the network.

    Raises:
        RemoteAddressRefused: `settings.host` is one.
    """
    if not (settings.is_local or settings.allow_remote or asks_who_calls):
        raise RemoteAddressRefused(
            f"{settings.host} can be reached from other machines, and nothing here asks who calls; "
            "make a key with 'shardwright keys create NAME' first, serve on 127.0.0.1, or add --allow-remote "
            "if the network is trusted"
        )
