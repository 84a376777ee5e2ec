"""Sessions of people: a key or token is shown once, then a random token in a cookie stands for it."""

import hashlib
import secrets
from dataclasses import asdict, dataclass

from api.service.authentication import Authenticator
from api.service.callers import Caller, Scope
from api.service.errors import Unauthenticated
from api.service.keys import KeyService, parts_of
from profiles_db import sessions
from profiles_db.engine import Database
from profiles_db.tables import now_us

_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session with its token, which is kept nowhere else than in a cookie."""

    token: str
    seconds: int
    """Until it ends."""


class SessionService:
    """Begins, knows and ends sessions. One ends with its key, its secret, or the provider's token, or by itself."""

    def __init__(
        self, database: Database, authenticator: Authenticator, keys: KeyService, *, session_s: int
    ) -> None:
        self._database = database
        self._authenticator = authenticator
        self._keys = keys
        self._session_s = session_s

    def begin(self, credential: str) -> NewSession:
        """Log in with an API key, or a token of the identity provider.

        Raises:
            Unauthenticated, Forbidden, IdentityProviderUnavailable: as for a caller of the API.
        """
        caller = self._authenticator.verify(credential)
        token, now = new_token(), now_us()
        until_us = now + self._session_s * 1_000_000
        with self._database.write() as session:
            if self._authenticator.is_key(credential):
                key_id, secret = parts_of(credential)
                sessions.add(session, _digest(token), expires_at_us=until_us, key_id=key_id, secret_sha256=secret)
            else:
                until_us = min(until_us, self._authenticator.ends_at_us(credential))
                shown = {**asdict(caller), "scopes": sorted(caller.scopes)}
                sessions.add(session, _digest(token), expires_at_us=until_us, caller=shown)
        return NewSession(token=token, seconds=max(0, (until_us - now) // 1_000_000))

    def caller(self, token: str | None) -> Caller:
        """Who a session is of.

        Raises:
            Unauthenticated: there is no such session, or what it was begun with has ended.
        """
        with self._database.read() as session:
            row = None if token is None else sessions.get(session, _digest(token))
        if row is None:
            raise Unauthenticated("log in: there is no session, or it has ended")
        if row.caller is not None:
            return Caller(**{**row.caller, "scopes": frozenset(Scope(scope) for scope in row.caller["scopes"])})
        assert row.key_id is not None
        return self._keys.recall(row.key_id, row.secret_sha256 or "")

    def end(self, token: str) -> None:
        """Log out."""
        with self._database.write() as session:
            sessions.remove(session, _digest(token))


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def form_token(token: str) -> str:
    """What forms carry, so that no other site can send them: it follows from the cookie, and not the other way."""
    return hashlib.sha256(f"form {token}".encode()).hexdigest()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
