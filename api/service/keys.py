"""API keys: make, list, rotate, revoke and verify them."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from api.service.callers import Caller, Scope, with_implied
from api.service.errors import NotFound, Unauthenticated
from planner.schema.base import Count, Document, Name
from profiles_db import keys
from profiles_db.engine import Database
from profiles_db.tables import KeyRow, now_us

PREFIX = "swk"
"""Marks our keys, so that scanners for leaked secrets can find them."""
LONGEST_S = 10 * 365 * 86_400
_TOUCH_EVERY_US = 60_000_000
_KEY_ID_BYTES, _SECRET_BYTES = 8, 32


class NewKey(Document):
    """What a key is made from."""

    kind: ClassVar[str] = "key"

    name: Name
    """For people: who or what uses it."""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1, max_length=3)]
    expires_in_s: Annotated[int, Field(strict=True, ge=1, le=LONGEST_S)] | None = None
    """Seconds until it ends by itself; None never does."""


class Rotation(Document):
    """How a key gets a new secret."""

    kind: ClassVar[str] = "rotation"

    keep_old_s: Annotated[Count, Field(le=30 * 86_400)] = 0
    """Seconds for which the old secret is accepted too, so that callers can change over one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedKey:
    """A key with its secret, which is shown once and kept nowhere."""

    row: KeyRow
    token: str


class KeyService:
    """Keys of tenants. `tenant=None` stands for all of them: the command line of an operator."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._any_exist = False

    def any_exist(self) -> bool:
        """Whether a key was ever made."""
        if not self._any_exist:
            with self._database.read() as session:
                self._any_exist = keys.any_exist(session)
        return self._any_exist

    def create(self, tenant: str, new: NewKey) -> IssuedKey:
        """Make a key."""
        key_id, secret = secrets.token_hex(_KEY_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        expires = None if new.expires_in_s is None else now_us() + new.expires_in_s * 1_000_000
        with self._database.write() as session:
            row = keys.add(
                session,
                key_id=key_id,
                tenant=tenant,
                name=new.name,
                scopes=" ".join(sorted(set(new.scopes))),
                secret_sha256=_digest(secret),
                expires_at_us=expires,
            )
        return IssuedKey(row=row, token=f"{PREFIX}_{key_id}_{secret}")

    def of_tenant(self, tenant: str | None) -> Sequence[KeyRow]:
        """Keys, newest first, ended ones too."""
        with self._database.read() as session:
            return keys.of_tenant(session, tenant)

    def rotate(self, tenant: str | None, key_id: str, rotation: Rotation) -> IssuedKey:
        """Give a key a new secret.

        Raises:
            NotFound: no such key, or it has ended.
        """
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        until_us = now_us() + rotation.keep_old_s * 1_000_000
        with self._database.write() as session:
            if not _is_alive(_own(keys.get(session, key_id), tenant)):
                raise NotFound("key", key_id)
            keys.rotate(session, key_id, _digest(secret), previous_until_us=until_us)
        with self._database.read() as session:
            row = keys.get(session, key_id)
        assert row is not None
        return IssuedKey(row=row, token=f"{PREFIX}_{key_id}_{secret}")

    def revoke(self, tenant: str | None, key_id: str) -> None:
        """End a key; one that has been revoked before is left as it is.

        Raises:
            NotFound: no such key.
        """
        with self._database.write() as session:
            if _own(keys.get(session, key_id), tenant) is None:
                raise NotFound("key", key_id)
            keys.revoke(session, key_id)

    def verify(self, token: str) -> Caller:
        """Whose key it is.

        Raises:
            Unauthenticated: nobody's, or it has ended.
        """
        return self.recall(*parts_of(token))

    def recall(self, key_id: str, secret_sha256: str) -> Caller:
        """As `verify`, of a key whose secret was shown before; see `parts_of`."""
        with self._database.read() as session:
            row = keys.get(session, key_id) if len(key_id) == 2 * _KEY_ID_BYTES else None
        if row is None or not _is_alive(row) or not _knows(row, secret_sha256):
            raise Unauthenticated("the API key is unknown, expired or revoked")
        if now_us() - (row.last_used_at_us or 0) > _TOUCH_EVERY_US:
            with self._database.write() as session:
                keys.touch(session, key_id)
        scopes = with_implied(Scope(scope) for scope in row.scopes.split())
        return Caller(tenant=row.tenant, submitted_by=f"key:{key_id}", name=row.name, scopes=scopes)


def parts_of(token: str) -> tuple[str, str]:
    """Identity of the key that a token names, and the digest of its secret."""
    _, _, rest = token.partition("_")
    key_id, _, secret = rest.partition("_")
    return key_id, _digest(secret)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _own(row: KeyRow | None, tenant: str | None) -> KeyRow | None:
    return row if row is not None and tenant in (None, row.tenant) else None


def _is_alive(row: KeyRow | None) -> bool:
    return row is not None and row.revoked_at_us is None and (row.expires_at_us or 2**62) > now_us()


def _knows(row: KeyRow, digest: str) -> bool:
    if hmac.compare_digest(row.secret_sha256, digest):
        return True
    previous = row.previous_sha256 if (row.previous_until_us or 0) > now_us() else None
    return previous is not None and hmac.compare_digest(previous, digest)
