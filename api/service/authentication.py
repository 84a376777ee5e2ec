"""From an `Authorization` header to a caller."""

from api.service.callers import ANONYMOUS, Caller, Scope
from api.service.errors import Forbidden, Unauthenticated
from api.service.keys import PREFIX, KeyService
from api.service.oidc import OidcVerifier
from api.settings import Settings


class Authenticator:
    """Accepts API keys and, where an identity provider is set up, its bearer tokens.

    While no key was ever made and no provider is set up, everyone is the default tenant, provided that only this
    machine can reach the server or its operator trusts the network.
    """

    def __init__(self, settings: Settings, keys: KeyService) -> None:
        self._keys = keys
        self._oidc = OidcVerifier(settings) if settings.oidc_issuer is not None else None
        self._may_be_open = (settings.is_local or settings.allow_remote) and not settings.require_keys

    def is_required(self) -> bool:
        """Whether callers have to say who they are."""
        return not self._may_be_open or self.can_succeed()

    def can_succeed(self) -> bool:
        """Whether there is anything that callers could show."""
        return self._oidc is not None or self._keys.any_exist()

    def authenticate(self, authorization: str | None) -> Caller:
        """Who calls.

        Raises:
            Unauthenticated: nothing that is accepted was shown.
            Forbidden, IdentityProviderUnavailable: from the identity provider's token.
        """
        if not self.is_required():
            return ANONYMOUS
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated(
                "send an API key as 'Authorization: Bearer swk_...'; the operator makes one with "
                "'shardwright keys create'"
            )
        return self.verify(token.strip())

    def verify(self, token: str) -> Caller:
        """Whose key or token it is; errors of `authenticate`."""
        return self._keys.verify(token) if self.is_key(token) else self._provider.verify(token)

    def is_key(self, token: str) -> bool:
        """Whether a token is taken for an API key, and not for one of the identity provider."""
        return token.startswith(f"{PREFIX}_") or self._oidc is None

    def ends_at_us(self, token: str) -> int:
        """When a token of the identity provider that was verified just now ends, microseconds since 1970."""
        return self._provider.ends_at_us(token)

    @property
    def _provider(self) -> OidcVerifier:
        assert self._oidc is not None, "without a provider every token is taken for a key"
        return self._oidc


def require(caller: Caller, scope: Scope) -> None:
    """Refuse a caller who may not do something.

    Raises:
        Forbidden: its key does not have the scope.
    """
    if scope not in caller.scopes:
        raise Forbidden(f"this needs a key with scope {scope.value!r}; {caller.name!r} does not have it")
