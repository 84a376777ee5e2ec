"""Which addresses may be served while nothing asks who calls."""

import ipaddress

from api.settings import Settings
from planner.schema.errors import ShardwrightError


class RemoteAddressRefused(ShardwrightError):
    """The server was asked to listen where other machines can reach it."""

    code = "remote_address_refused"


def check_address(settings: Settings) -> None:
    """Refuse addresses that other machines can reach, unless they are asked for.

    Raises:
        RemoteAddressRefused: `settings.host` is one.
    """
    if not settings.allow_remote and not is_loopback(settings.host):
        raise RemoteAddressRefused(
            f"{settings.host} can be reached from other machines, and nothing here asks who calls; "
            "serve on 127.0.0.1, or set SHARDWRIGHT_ALLOW_REMOTE=true if the network is trusted"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
