"""Who looks at a page."""

from fastapi import Request

from api.dashboard.cookies import cookie_of
from api.http.dependencies import get_services
from api.service.callers import ANONYMOUS, Caller


def viewer_of(request: Request) -> Caller:
    """As for the API, with a session in the place of the key; a proxy in front may show a token for everyone.

    Raises:
        Unauthenticated, Forbidden, IdentityProviderUnavailable: as for a caller of the API.
    """
    services = get_services(request)
    if not services.authenticator.is_required():
        return ANONYMOUS
    header = request.headers.get("authorization")
    if header is not None:
        return services.authenticator.authenticate(header)
    found = services.sessions.caller(cookie_of(request))
    request.state.is_session = True
    return found
