"""Forms: what they carry, and that they come from one of our own pages."""

import hmac
from urllib.parse import parse_qsl, urlsplit

from fastapi import Request

from api.http.problems import ForeignForm, UnsupportedMediaType
from api.service.sessions import form_token
from planner.schema.errors import InvalidDocument

MAX_FIELDS = 500
TOKEN_FIELD = "csrf"
TOKEN_HEADER = "x-csrf-token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})
_MEDIA_TYPE = "application/x-www-form-urlencoded"


async def form_of(request: Request) -> dict[str, str]:
    """Fields of a form; of a name that comes twice the last one. Empty where there is no body.

    Raises:
        UnsupportedMediaType: the body is no form.
        InvalidDocument: it is not UTF-8, or has too many fields.
    """
    body = await request.body()
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


async def check_own_form(request: Request) -> None:
    """Refuse what changes something and does not come from one of our pages.

    Raises:
        ForeignForm: the browser says that another site sent it, or the token of the session is missing or wrong.
    """
    if request.method in SAFE_METHODS:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in _OWN_SITES:
        raise ForeignForm("another site sent this form; open the page here and send it again")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise ForeignForm("another site sent this form; open the page here and send it again")
    given = request.headers.get(TOKEN_HEADER) or (await form_of(request)).get(TOKEN_FIELD, "")
    if not hmac.compare_digest(given.encode(), form_token(request.state.cookie).encode()):
        raise ForeignForm("the form is from a session that has ended; load the page again and send it again")
