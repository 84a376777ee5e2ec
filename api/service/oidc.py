"""Bearer tokens of an identity provider (OpenID Connect), verified with its published keys."""

import hashlib
from collections.abc import Mapping
from typing import Any

import jwt
import structlog
from jwt.exceptions import PyJWKClientConnectionError, PyJWTError

from api.service.callers import Caller, Scope, check_tenant, with_implied
from api.service.errors import Forbidden, IdentityProviderUnavailable, InvalidTenant, Unauthenticated
from api.settings import Settings

_log = structlog.get_logger()

_ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
"""Signatures with a private key only: with a shared secret, whoever verifies could also sign."""
_LEEWAY_S = 30
_FETCH_TIMEOUT_S = 5


class OidcVerifier:
    """Knows one issuer. Its keys come from `oidc_jwks_url` alone; URLs inside a token are never opened."""

    def __init__(self, settings: Settings) -> None:
        assert settings.oidc_jwks_url is not None
        self._issuer = settings.oidc_issuer
        self._audience = settings.oidc_audience
        self._tenant_claim = settings.oidc_tenant_claim
        self._scope_claim = settings.oidc_scope_claim
        self._keys = jwt.PyJWKClient(settings.oidc_jwks_url, timeout=_FETCH_TIMEOUT_S)

    def verify(self, token: str) -> Caller:
        """Whose token it is.

        Raises:
            Unauthenticated: it is not one of our issuer for us, or it has ended.
            Forbidden: it names no tenant.
            IdentityProviderUnavailable: its keys cannot be fetched.
        """
        try:
            key = self._keys.get_signing_key_from_jwt(token)
            claims = jwt.decode(
                token,
                key,
                algorithms=list(_ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except PyJWKClientConnectionError:
            _log.exception("jwks_unavailable")
            raise IdentityProviderUnavailable("the keys of the identity provider cannot be fetched") from None
        except PyJWTError as error:
            raise Unauthenticated(f"the bearer token is refused: {error}") from None
        return self._caller(claims)

    def ends_at_us(self, token: str) -> int:
        """When a token that was verified just now ends, microseconds since 1970."""
        claims = jwt.decode(token, options={"verify_signature": False})
        return int(claims["exp"]) * 1_000_000

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        try:
            tenant = check_tenant(str(claims.get(self._tenant_claim, "")))
        except InvalidTenant as error:
            raise Forbidden(f"claim {self._tenant_claim!r} of the bearer token: {error}") from None
        subject = str(claims["sub"])
        digest = hashlib.sha256(subject.encode()).hexdigest()[:32]
        return Caller(
            tenant=tenant,
            submitted_by=f"oidc:{digest}",
            name=subject[:200],
            scopes=with_implied(_scopes(claims.get(self._scope_claim))),
        )


def _scopes(claim: object) -> list[Scope]:
    """Of a claim, either words in one string (RFC 8693) or a list; words of others are passed over."""
    words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return [scope for scope in Scope if scope.value in words]
