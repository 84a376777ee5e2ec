"""The HTTP interface: `create_app` for any ASGI server, `serve` to run one."""

from api.http.addresses import RemoteAddressRefused
from api.http.app import create_app
from api.http.server import serve

__all__ = ["RemoteAddressRefused", "create_app", "serve"]
