"""Run the application with uvicorn."""

import socket
from contextlib import ExitStack, closing
from types import FrameType
from typing import Any

import structlog
import uvicorn

from api.http.addresses import check_address
from api.http.app import create_app
from api.logs import configure_logs
from api.service.services import Services
from api.settings import Settings
from planner.schema.errors import ShardwrightError

_log = structlog.get_logger()


class AddressUnavailable(ShardwrightError):
    """The address cannot be listened on."""

    code = "address_unavailable"


class ServerFailed(ShardwrightError):
    """The server ended before it could answer."""

    code = "server_failed"


def serve(
    host: str | None = None,
    port: int | None = None,
    database_url: str | None = None,
    *,
    allow_remote: bool | None = None,
    require_keys: bool | None = None,
    log_format: str | None = None,
) -> None:
    """Serve until a signal comes. What is None is taken from `SHARDWRIGHT_*` variables, else from the defaults.

    Raises:
        RemoteAddressRefused: other machines can reach `host`, nothing asks who calls, `allow_remote` is not set.
        AddressUnavailable: the port is taken, or the host has no such address.
        InvalidDatabaseUrl, DatabaseInUse, DatabaseUnavailable: from the database.
    """
    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "database_url": database_url,
        "allow_remote": allow_remote,
        "require_keys": require_keys,
        "log_format": log_format,
    }
    run(Settings(**{name: value for name, value in given.items() if value is not None}))


def run(settings: Settings) -> None:
    """Serve with given settings; errors as in `serve`."""
    app = create_app(settings)
    services: Services = app.state.services
    with ExitStack() as stack:
        stack.enter_context(closing(services.database))
        services.prepare()
        check_address(settings, asks_who_calls=settings.require_keys or services.authenticator.can_succeed())
        listener = stack.enter_context(closing(_listen(settings)))
        configure_logs(settings)
        address, port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        if not services.authenticator.is_required():
            _log.info("open_to_everyone", reach="this machine" if settings.is_local else "the network")
        elif not services.authenticator.can_succeed():
            _log.warning("no_keys", remedy="make one with: shardwright keys create NAME")
        _log.info("listening", url=f"http://{shown}:{port}", database=services.database.describe())
        server = _Server(
            uvicorn.Config(app, log_config=None, server_header=False, timeout_graceful_shutdown=5), services
        )
        server.run(sockets=[listener])
        if not server.started:
            raise ServerFailed("the server could not start; its log says why")


class _Server(uvicorn.Server):
    """Lets those who wait for a plan go before it ends."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: from here on nobody waits, and no new connection is taken."""
        self._services.jobs.drain()
        super().handle_exit(sig, frame)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off (40 ms on every small answer) only for sockets that name their protocol.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise AddressUnavailable(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}; "
            "choose another --port (0 takes a free one)"
        ) from None
    return listener
