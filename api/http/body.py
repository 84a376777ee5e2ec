"""Request bodies: JSON only, of limited size, never held beyond the limit."""

import time
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.problems import BodyTooLarge, UnsupportedMediaType, error_response

Result = TypeVar("Result")

BODIES_AT_ONCE = 4
LINGER_S = 2.0
"""How long the rest of a refused body is thrown away, so that the client sees the answer and not a reset."""
LINGER_BYTES = 8 * 2**20


class BodyLimit:
    """ASGI middleware: refuses a body by its declared length, or as soon as more than the limit has come."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            response = error_response(self._error())
            response.headers["connection"] = "close"
            await response(scope, receive, send)
            await _linger(receive)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise self._error()
            return message

        await self._app(scope, counted, send)
        if num_bytes > self._max_body_bytes:
            await _linger(receive)

    def _error(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body may have at most {self._max_body_bytes} bytes")


async def _linger(receive: Receive) -> None:
    deadline, left = time.monotonic() + LINGER_S, LINGER_BYTES
    while left > 0 and time.monotonic() < deadline:
        message = await receive()
        left -= len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return


async def json_body(request: Request) -> bytes:
    """The body of a request that says it is JSON.

    Raises:
        UnsupportedMediaType: it says something else.
        BodyTooLarge: from `BodyLimit`, while reading.
    """
    content_type = request.headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise UnsupportedMediaType(f"send application/json, not {media_type or 'a body without Content-Type'}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMediaType(f"send the body as it is, not in Content-Encoding {encoding[:40]}")
    return await request.body()


async def with_body(request: Request, function: Callable[..., Result], *arguments: object) -> Result:
    """Run a function that parses a body in a thread; only a few at a time, since each may take much memory."""
    limiter: CapacityLimiter = request.app.state.body_limiter
    return await run_sync(function, *arguments, limiter=limiter)
