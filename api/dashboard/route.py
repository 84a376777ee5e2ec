"""`PageRoute`: what every page has in common. Headers, cookie, forms from us alone, errors as pages."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from api.dashboard.cookies import cookie_of, set_cookie
from api.dashboard.errors import error_page
from api.dashboard.forms import check_own_form
from api.service.sessions import new_token

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRoute(APIRoute):
    """Answers with pages, errors too. Nothing that changes something runs before its form was checked."""

    def get_route_handler(self) -> Handler:
        """The handler of FastAPI, with what pages need around it."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await answer(request, inner)

        return handle


async def answer(request: Request, handler: Handler) -> Response:
    """Answer a request for a page."""
    known = cookie_of(request)
    request.state.cookie = known or new_token()
    try:
        await check_own_form(request)
        response = await handler(request)
    except Exception as error:
        response = await error_page(request, error)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if known is None and "set-cookie" not in response.headers:
        set_cookie(request, response, request.state.cookie)
    return response
