"""What endpoints share: services, parameters of lists, identities in paths."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from api.http.body import json_body
from api.http.tracing import note
from api.service.authentication import require
from api.service.callers import Caller, Scope
from api.service.services import Services

SHA256_PATTERN = r"^sha256:[0-9a-f]{64}$"
EXAMPLE_HASH = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def get_services(request: Request) -> Services:
    """The services of the app that answers."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


ServicesDep = Annotated[Services, Depends(get_services)]
_bearer = HTTPBearer(
    scheme_name="key",
    bearerFormat="swk_...",
    description="An API key, or a token of the identity provider. Not asked for on loopback before one is made.",
    auto_error=False,
)


def _caller_with(scope: Scope) -> Callable[..., Awaitable[Caller]]:
    async def caller(
        request: Request,
        services: ServicesDep,
        _shown: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    ) -> Caller:
        header = request.headers.get("authorization")
        found = await run_in_threadpool(services.authenticator.authenticate, header)
        request.state.caller = found
        note(tenant=found.tenant, caller=found.submitted_by)
        require(found, scope)
        return found

    return caller


Reader = Annotated[Caller, Depends(_caller_with(Scope.READ))]
"""Comes first among the parameters of an endpoint, so that nothing is read from a stranger."""
Planner = Annotated[Caller, Depends(_caller_with(Scope.PLAN))]
Admin = Annotated[Caller, Depends(_caller_with(Scope.ADMIN))]
JsonBody = Annotated[bytes, Depends(json_body)]
ContentHash = Annotated[str, Path(pattern=SHA256_PATTERN, description="Content hash.", examples=[EXAMPLE_HASH])]
JobId = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9_.:+-]{1,200}$",
        description="Identity of a job, as `POST /v1/plans` gave it.",
        examples=[f"default:{EXAMPLE_HASH}:0.1.0:1"],
    ),
]
CursorParameter = Annotated[
    str | None, Query(alias="cursor", max_length=500, description="`next` of the page before.")
]
Limit = Annotated[int, Query(ge=1, le=200, description="Most items on a page.")]


def timestamp(at_us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds")
