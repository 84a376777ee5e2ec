"""Forms: what they carry, and that they come from one of our own pages."""

import hmac
from urllib.parse import parse_qsl

from fastapi import Request

from api.http.problems import BodyTooLarge, ForeignForm, UnsupportedMediaType
from api.service.sessions import form_token
from planner.schema.errors import InvalidDocument

MAX_FIELDS = 500
MAX_BYTES = 2**16
"""Of a form: more than the longest of ours takes. It is read in the event loop, before anybody has logged in."""
TOKEN_FIELD = "csrf"
TOKEN_HEADER = "x-csrf-token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})
_MEDIA_TYPE = "application/x-www-form-urlencoded"


async def form_of(request: Request) -> dict[str, str]:
    """Fields of a form; of a name that comes twice the last one. Empty where there is no body.

    Raises:
        UnsupportedMediaType: the body is no form.
        BodyTooLarge: it has more than `MAX_BYTES`.
        InvalidDocument: it is not UTF-8, or has too many fields.
    """
    if not hasattr(request.state, "form_body"):
        request.state.form_body = await _read(request)
    body = request.state.form_body
    if not body:
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _MEDIA_TYPE:
        raise UnsupportedMediaType(f"send a form as {_MEDIA_TYPE}")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        message = f"the form cannot be read: it has to be UTF-8 with at most {MAX_FIELDS} fields"
        raise InvalidDocument(message, problems=(("", message),)) from None
    return dict(fields)


async def _read(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise BodyTooLarge(f"a form may have at most {MAX_BYTES} bytes")
    return bytes(body)


async def check_own_form(request: Request) -> None:
    """Refuse what changes something and does not come from one of our pages.

    Raises:
        BodyTooLarge, UnsupportedMediaType, InvalidDocument: from `form_of`.
        ForeignForm: the browser says that another site sent it, or the token of the session is missing or wrong.
    """
    if request.method in SAFE_METHODS:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in _OWN_SITES:
        raise ForeignForm("another site sent this form; open the page here and send it again")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise ForeignForm("another site sent this form; open the page here and send it again")
    given = request.headers.get(TOKEN_HEADER) or (await form_of(request)).get(TOKEN_FIELD, "")
    if not hmac.compare_digest(given.encode(), form_token(request.state.cookie).encode()):
        raise ForeignForm("the form is from a session that has ended; load the page again and send it again")
