"""`/login` and `/logout`: a key or a token in, a session out."""

from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from api.dashboard.cookies import set_cookie
from api.dashboard.dependencies import Form, page_router
from api.dashboard.rendering import page
from api.http.dependencies import ServicesDep
from api.service.errors import Unauthenticated
from api.service.sessions import new_token

router = page_router()

MAX_ADDRESS = 2000
Next = Annotated[str, Query(alias="next")]


@router.get("/login")
def show_login(request: Request, services: ServicesDep, wanted: Next = "/") -> Response:
    """The form; where nothing asks who calls there is nothing to log in to."""
    if not services.authenticator.is_required():
        return RedirectResponse("/", 303)
    return _form(request, services, wanted)


@router.post("/login")
async def log_in(request: Request, services: ServicesDep, form: Form) -> Response:
    """Begin a session, in the place of an earlier one, and go on to the page that was asked for."""
    credential, wanted = form.get("credential", "").strip(), form.get("next", "/")
    try:
        session = await run_in_threadpool(services.sessions.begin, credential)
    except Unauthenticated as error:
        return await run_in_threadpool(_form, request, services, wanted, str(error))
    await run_in_threadpool(services.sessions.end, request.state.cookie)
    response = RedirectResponse(local_path(wanted), 303)
    set_cookie(request, response, session.token, seconds=session.seconds)
    return response


@router.post("/logout")
async def log_out(request: Request, services: ServicesDep) -> Response:
    """End the session, here and in the database."""
    await run_in_threadpool(services.sessions.end, request.state.cookie)
    response = RedirectResponse("/login?notice=logged-out", 303)
    set_cookie(request, response, new_token())
    return response


def local_path(wanted: str) -> str:
    """Where to go after login: a page of ours, whatever a link says; the overview if it is none, or too long."""
    is_local = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_local and len(wanted) <= MAX_ADDRESS else "/"


def _form(request: Request, services: ServicesDep, wanted: str, problem: str | None = None) -> Response:
    return page(
        request,
        "login.html",
        401 if problem else 200,
        problem=problem,
        wanted=local_path(wanted),
        takes_tokens=services.settings.oidc_issuer is not None,
        has_keys=services.keys.any_exist(),
    )
