"""A regeneration and how far it is."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from profiles_db import regenerations
from profiles_db.tables import RegenerationRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RegenerationView:
    """A regeneration and how far it is."""

    row: RegenerationRow
    counts: dict[str, dict[str, int]]


def view_of(session: Session, row: RegenerationRow) -> RegenerationView:
    """A regeneration with its counts."""
    return RegenerationView(row=row, counts=regenerations.counts(session, row))
