"""Every request gets an id, a log line, metrics, and a problem document even when the server fails."""

import re
import time
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.problems import internal_error, problem_response
from api.http.tracing import trace_fields
from api.service.metrics import Metrics

_log = structlog.get_logger()
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestContext:
    """Outermost ASGI middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        started = time.perf_counter()
        with structlog.contextvars.bound_contextvars(request_id=request_id, **trace_fields()):
            try:
                await self._app(scope, receive, send_with_id)
            except Exception:
                _log.exception("request_crashed", path=scope["path"])
                if not status:
                    await internal_error()(scope, receive, send_with_id)
            self._record(scope, status, time.perf_counter() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = _known_method(scope["method"]), getattr(scope.get("route"), "path", "(none)")
        self._metrics.http_requests.labels(method, route, status).inc()
        self._metrics.http_seconds.labels(method, route).observe(seconds)
        caller = scope.get("state", {}).get("caller")
        who = {} if caller is None else {"tenant": caller.tenant, "caller": caller.submitted_by}
        _log.info("request", method=method, path=scope["path"], status=status, seconds=round(seconds, 4), **who)


class HostCheck:
    """Refuses foreign host names, so that no web page can reach a loopback server through a name of its own."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
            if name.lower() not in self._hosts:
                response = problem_response(
                    421,
                    "host_not_served",
                    "this server is for this machine only: call it localhost, 127.0.0.1 or [::1]",
                )
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _known_method(method: str) -> str:
    return method if method in {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} else "OTHER"
