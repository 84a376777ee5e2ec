"""What pages share: who looks at them, and the router that makes them pages."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool

from api.dashboard.forms import form_of
from api.dashboard.route import PageRoute
from api.dashboard.viewers import viewer_of
from api.service.authentication import require
from api.service.callers import Caller, Scope

Form = Annotated[dict[str, str], Depends(form_of)]
"""Fields of the form that was sent; it comes after the caller among the parameters of an endpoint."""


def page_router() -> APIRouter:
    """A router whose answers are pages."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def _viewer_with(scope: Scope) -> Callable[..., Coroutine[Any, Any, Caller]]:
    async def viewer(request: Request) -> Caller:
        found = await run_in_threadpool(viewer_of, request)
        request.state.caller = found
        structlog.contextvars.bind_contextvars(tenant=found.tenant, caller=found.submitted_by)
        require(found, scope)
        return found

    return viewer


Viewer = Annotated[Caller, Depends(_viewer_with(Scope.READ))]
"""Comes first among the parameters of an endpoint."""
PlanningViewer = Annotated[Caller, Depends(_viewer_with(Scope.PLAN))]
AdminViewer = Annotated[Caller, Depends(_viewer_with(Scope.ADMIN))]
