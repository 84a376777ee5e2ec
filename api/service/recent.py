"""Bodies that were read before: the same bytes of a tenant are the same request, and need no second reading."""

import hashlib
import threading
from collections import OrderedDict

MOST = 4096
"""Bodies that are remembered, by their digests: under a megabyte."""


class RecentBodies:
    """Which request each of the last bodies was. Safe to use from several threads."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[bytes, str] = OrderedDict()

    def get(self, tenant: str, body: bytes) -> str | None:
        """Hash of the request; None for a body that is not remembered."""
        key = _key(tenant, body)
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def put(self, tenant: str, body: bytes, request_hash: str) -> None:
        """Remember a body; the one that was not asked for longest is forgotten."""
        key = _key(tenant, body)
        with self._lock:
            self._found[key] = request_hash
            self._found.move_to_end(key)
            if len(self._found) > self._most:
                self._found.popitem(last=False)


def _key(tenant: str, body: bytes) -> bytes:
    return hashlib.sha256(f"{tenant}\n".encode() + body).digest()
