"""Lineages of a tenant: revisions and activations are added, never changed; the lineage points at them."""

from collections.abc import Collection, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from profiles_db.insert import insert_if_absent
from profiles_db.pages import Cursor, Page, highest_first, newest_first, page_of, page_of_numbers
from profiles_db.tables import ActivationRow, Cause, LineageRow, RevisionRow, now_us


def get(session: Session, tenant: str, lineage_id: str) -> LineageRow | None:
    """A lineage."""
    return session.get(LineageRow, (tenant, lineage_id))


def named(session: Session, tenant: str, name: str, model_fingerprint: str | None = None) -> Sequence[LineageRow]:
    """Lineages of a name, oldest first, of one module when it is given."""
    query = select(LineageRow).where(LineageRow.tenant == tenant, LineageRow.name == name)
    if model_fingerprint is not None:
        query = query.where(LineageRow.model_fingerprint == model_fingerprint)
    return session.scalars(query.order_by(LineageRow.created_at_us, LineageRow.lineage_id)).all()


def page(
    session: Session,
    tenant: str,
    *,
    name: str | None = None,
    model_fingerprint: str | None = None,
    cursor: Cursor | None = None,
    limit: int = 50,
) -> Page[LineageRow]:
    """Lineages, newest first."""
    query = select(LineageRow).where(LineageRow.tenant == tenant)
    if name is not None:
        query = query.where(LineageRow.name == name)
    if model_fingerprint is not None:
        query = query.where(LineageRow.model_fingerprint == model_fingerprint)
    ordered = newest_first(query, LineageRow.created_at_us, LineageRow.lineage_id, cursor=cursor, limit=limit)
    return page_of(session.scalars(ordered).all(), "lineage_id", limit=limit)


def names(session: Session, tenant: str, lineage_ids: Collection[str]) -> dict[str, str]:
    """Names of lineages by their identity."""
    query = select(LineageRow.lineage_id, LineageRow.name)
    wanted = query.where(LineageRow.tenant == tenant, LineageRow.lineage_id.in_(lineage_ids))
    return dict(session.execute(wanted).all())


def locked(session: Session, tenant: str, lineage_id: str) -> LineageRow | None:
    """A lineage that nobody else changes before this transaction ends."""
    key = (tenant, lineage_id)
    return session.get(LineageRow, key, with_for_update=True, populate_existing=True)


def open_lineage(
    session: Session, tenant: str, lineage_id: str, *, name: str, model_fingerprint: str, training_hash: str
) -> LineageRow:
    """The lineage of an identity, locked; made without revisions where there is none."""
    values = {
        "tenant": tenant,
        "lineage_id": lineage_id,
        "name": name,
        "model_fingerprint": model_fingerprint,
        "training_hash": training_hash,
        "version": 0,
        "newest_revision": 0,
        "active_revision": None,
        "num_activations": 0,
        "created_at_us": now_us(),
    }
    insert_if_absent(session, LineageRow, values)
    row = locked(session, tenant, lineage_id)
    assert row is not None
    return row


def add_revision(
    session: Session, lineage: LineageRow, plan_id: str, *, cause: Cause, changed: list[str], why: str, by: str
) -> RevisionRow:
    """The next revision of a locked lineage."""
    row = RevisionRow(
        tenant=lineage.tenant,
        lineage_id=lineage.lineage_id,
        revision=lineage.newest_revision + 1,
        plan_id=plan_id,
        cause=cause,
        changed=changed,
        why=why,
        created_by=by,
        created_at_us=now_us(),
    )
    session.add(row)
    lineage.newest_revision = row.revision
    lineage.version += 1
    session.flush()
    return row


def activate(session: Session, lineage: LineageRow, revision: int, *, why: str, by: str) -> ActivationRow:
    """Point a locked lineage at a revision."""
    row = ActivationRow(
        tenant=lineage.tenant,
        lineage_id=lineage.lineage_id,
        number=lineage.num_activations + 1,
        revision=revision,
        previous_revision=lineage.active_revision,
        why=why,
        activated_by=by,
        created_at_us=now_us(),
    )
    session.add(row)
    lineage.active_revision = revision
    lineage.num_activations = row.number
    lineage.version += 1
    session.flush()
    return row


def revision(session: Session, lineage: LineageRow, number: int | None) -> RevisionRow | None:
    """A revision by its number."""
    return None if number is None else session.get(RevisionRow, (lineage.tenant, lineage.lineage_id, number))


def revisions(
    session: Session, lineage: LineageRow, *, cursor: Cursor | None = None, limit: int = 50
) -> Page[RevisionRow]:
    """Revisions, newest first."""
    query = select(RevisionRow).where(
        RevisionRow.tenant == lineage.tenant, RevisionRow.lineage_id == lineage.lineage_id
    )
    ordered = highest_first(query, RevisionRow.revision, cursor=cursor, limit=limit)
    return page_of_numbers(session.scalars(ordered).all(), "revision", limit=limit)


def activations(
    session: Session, lineage: LineageRow, *, cursor: Cursor | None = None, limit: int = 50
) -> Page[ActivationRow]:
    """Moves of the active pointer, newest first."""
    query = select(ActivationRow).where(
        ActivationRow.tenant == lineage.tenant, ActivationRow.lineage_id == lineage.lineage_id
    )
    ordered = highest_first(query, ActivationRow.number, cursor=cursor, limit=limit)
    return page_of_numbers(session.scalars(ordered).all(), "number", limit=limit)
