"""Errors as pages: what went wrong, and what to do."""

import json
from contextlib import suppress
from urllib.parse import quote

import structlog
from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from api.dashboard.rendering import page
from api.dashboard.viewers import viewer_of
from api.http.problems import internal_error, problem_of
from api.service.errors import Unauthenticated
from planner.schema.errors import ShardwrightError

_log = structlog.get_logger()

REMEDIES: dict[int | str, str] = {
    "foreign_form": "Load the page again and send the form from there.",
    400: "Go back, change what the message names, and send it again.",
    403: "Sign in with a key that may do this, or ask an administrator of your tenant for one.",
    404: "It may belong to another tenant, or have been pruned. Look for it in the lists above.",
    405: "Open the page it belongs to, and use the form there.",
    409: "Look at it again: somebody else, or the service itself, was faster.",
    412: "Load the page again, look at what changed, and decide anew.",
    413: "Send less.",
    421: "Open the address that the server printed when it started.",
    422: "Go back, change what the message names, and send it again.",
    429: "Wait until some jobs are done, or cancel some, then try again.",
    500: "Try again. If it stays, give the request id below to whoever runs the server; its log has the details.",
    503: "Try again in a moment. If it stays, ask whoever runs the server.",
}
"""By code or status; what has none is told to try again."""


async def error_page(request: Request, error: Exception) -> Response:
    """The page for an error of any handler; who has to log in is sent to the form for it."""
    if isinstance(error, Unauthenticated):
        return to_login(request)
    answer = _problem_of(request, error)
    problem = json.loads(bytes(answer.body))
    remedy = REMEDIES.get(problem["code"]) or REMEDIES.get(answer.status_code) or REMEDIES[503]
    if not hasattr(request.state, "caller"):
        await run_in_threadpool(_find_viewer, request)
    found = await run_in_threadpool(
        page,
        request,
        "error.html",
        answer.status_code,
        problem=problem,
        remedy=remedy,
        request_id=structlog.contextvars.get_contextvars().get("request_id", ""),
    )
    for name, value in answer.headers.items():
        if name not in ("content-type", "content-length", "www-authenticate"):
            found.headers[name] = value
    return found


def to_login(request: Request) -> Response:
    """Send a person to the login form, and afterwards to where they wanted to go."""
    # As it was sent: in the decoded path, a name with a slash or a question mark in it is another address.
    path = request.scope["raw_path"].decode("latin-1")
    wanted = path + (f"?{request.url.query}" if request.url.query else "")
    place = "/login" if wanted == "/" or request.method != "GET" else f"/login?next={quote(wanted)}"
    if request.headers.get("hx-request"):
        return Response(status_code=401, headers={"HX-Redirect": "/login"})
    return RedirectResponse(place, 303)


def _problem_of(request: Request, error: Exception) -> Response:
    """What the API would answer."""
    try:
        return problem_of(request, error)
    except Exception:
        _log.exception("page_crashed", path=request.url.path)
        return internal_error()


def _find_viewer(request: Request) -> None:
    """So that the page has its navigation, where it can have one."""
    with suppress(ShardwrightError, SQLAlchemyError):
        request.state.caller = viewer_of(request)


def wants_page(request: Request) -> bool:
    """Whether somebody looks at this with a browser, and it is no address of the API."""
    is_api = request.url.path.startswith("/v1/")
    return not is_api and "text/html" in request.headers.get("accept", "")
