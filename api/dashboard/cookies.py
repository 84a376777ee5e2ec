"""The one cookie: before login it only ties forms to a browser, after it also says who calls."""

from fastapi import Request, Response

_NAME = "shardwright_session"


def cookie_of(request: Request) -> str | None:
    """The cookie, if it can be one of ours."""
    value = request.cookies.get(_name(request), "")
    return value if 20 <= len(value) <= 100 else None


def set_cookie(request: Request, response: Response, token: str, *, seconds: int | None = None) -> None:
    """Let a browser keep a token; without `seconds` until it is closed."""
    response.set_cookie(
        _name(request),
        token,
        max_age=seconds,
        path="/",
        secure=_is_encrypted(request),
        httponly=True,
        samesite="lax",
    )


def _name(request: Request) -> str:
    """With `__Host-`, no other host of a domain can plant one."""
    return f"__Host-{_NAME}" if _is_encrypted(request) else _NAME


def _is_encrypted(request: Request) -> bool:
    return request.url.scheme == "https"
