"""Insert unless the key is there: one statement on either database."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import literal
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from profiles_db.tables import Base


def insert_if_absent(session: Session, table: type[Base], values: Mapping[str, Any]) -> bool:
    """Insert a row; returns False when a row with the same key is already there."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    statement = insert(table).values(**values).on_conflict_do_nothing().returning(literal(1))
    return session.scalar(statement) is not None
