"""A regeneration and how far it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from profiles_db import lineages, regenerations
from profiles_db.tables import RegenerationItemRow, RegenerationRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RegenerationView:
    """A regeneration and how far it is."""

    row: RegenerationRow
    counts: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemView:
    """One plan that is made again, and the name of its lineage."""

    row: RegenerationItemRow
    lineage_name: str | None


def items_of(session: Session, tenant: str, rows: Sequence[RegenerationItemRow]) -> list[ItemView]:
    """Items with the names of their lineages."""
    names = lineages.names(session, tenant, [row.lineage_id for row in rows if row.lineage_id is not None])
    return [ItemView(row=row, lineage_name=names.get(row.lineage_id or "")) for row in rows]


def view_of(session: Session, row: RegenerationRow) -> RegenerationView:
    """A regeneration with its counts."""
    return RegenerationView(row=row, counts=regenerations.counts(session, row))
