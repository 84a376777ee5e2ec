"""What all tables share. Times are microseconds since 1970, UTC; every row of a tenant starts its key with it."""

import time

from sqlalchemy import ForeignKeyConstraint, MetaData, String
from sqlalchemy.orm import DeclarativeBase

HASH = String(71)
"""`sha256:` and 64 hex digits."""
JOB_ID = String(200)
TENANT = String(63)
"""A DNS label, as Kubernetes names its namespaces."""


class Base(DeclarativeBase):
    """Names every constraint, so that migrations can refer to it on every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def same_tenant(column: str, referred: str) -> ForeignKeyConstraint:
    """A column that names a row of the same tenant; `referred` is `table.column`."""
    table, _, _ = referred.partition(".")
    return ForeignKeyConstraint(["tenant", column], [f"{table}.tenant", referred])


def now_us() -> int:
    """Microseconds since 1970 (UTC)."""
    return time.time_ns() // 1000
