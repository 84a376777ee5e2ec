"""Who calls, and what they may do."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from api.service.errors import InvalidTenant

DEFAULT_TENANT = "default"
"""Whose everything is while no keys exist."""
TENANT_PATTERN = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


class Scope(StrEnum):
    """What a caller may do; each includes the ones before."""

    READ = "read"
    """Look at documents, plans, jobs and metrics."""
    PLAN = "plan"
    """Store documents, ask for plans, cancel jobs."""
    ADMIN = "admin"
    """Manage the keys of the tenant, activate revisions, start regenerations."""


def with_implied(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Scopes and those they include."""
    ranked = list(Scope)
    highest = max((ranked.index(scope) for scope in scopes), default=-1)
    return frozenset(ranked[: highest + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authenticated caller. It sees its own tenant, and nothing that belongs to another."""

    tenant: str
    submitted_by: str
    """Whose limits its jobs count against: `key:...`, `oidc:...` or `anonymous`."""
    name: str
    scopes: frozenset[Scope]


ANONYMOUS = Caller(
    tenant=DEFAULT_TENANT,
    submitted_by="anonymous",
    name="anonymous",
    scopes=frozenset(Scope),
)
"""Everyone, where nothing asks who calls."""


def check_tenant(name: str) -> str:
    """The name of a tenant, if it is one.

    Raises:
        InvalidTenant: it is not a DNS label.
    """
    if not re.fullmatch(TENANT_PATTERN, name):
        raise InvalidTenant(
            f"{name[:80]!r} cannot name a tenant: use at most 63 lower-case letters, digits and hyphens, "
            "with a letter or digit at both ends"
        )
    return name
