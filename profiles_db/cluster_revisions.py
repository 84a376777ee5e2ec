"""What a cluster of a name was when, and which plans rest on it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Select, func, select, tuple_
from sqlalchemy.orm import Session

from profiles_db import documents
from profiles_db.insert import insert_if_absent
from profiles_db.pages import Cursor, Page, highest_first, page_of_numbers
from profiles_db.tables import (
    ClusterRevisionRow,
    DocumentKind,
    DocumentRow,
    LineageRow,
    PlanRow,
    RevisionRow,
    now_us,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """A plan to make again."""

    plan_id: str
    lineage_id: str | None = None
    lineage_name: str | None = None
    revision: int | None = None


def newest(session: Session, tenant: str, name: str) -> ClusterRevisionRow | None:
    """The revision that holds now."""
    query = select(ClusterRevisionRow).where(ClusterRevisionRow.tenant == tenant, ClusterRevisionRow.name == name)
    return session.scalar(query.order_by(ClusterRevisionRow.revision.desc()).limit(1))


def page(
    session: Session, tenant: str, name: str, *, cursor: Cursor | None = None, limit: int = 50
) -> Page[ClusterRevisionRow]:
    """Revisions, newest first."""
    query = select(ClusterRevisionRow).where(ClusterRevisionRow.tenant == tenant, ClusterRevisionRow.name == name)
    ordered = highest_first(query, ClusterRevisionRow.revision, cursor=cursor, limit=limit)
    return page_of_numbers(session.scalars(ordered).all(), "revision", limit=limit)


def add(
    session: Session,
    tenant: str,
    name: str,
    revision: int,
    *,
    cluster_hash: str,
    changes: list[str],
    why: str,
    by: str,
) -> bool:
    """Store a revision; returns False when another one came first."""
    values = {
        "tenant": tenant,
        "name": name,
        "revision": revision,
        "cluster_hash": cluster_hash,
        "changes": changes,
        "why": why,
        "created_by": by,
        "created_at_us": now_us(),
    }
    return insert_if_absent(session, ClusterRevisionRow, values)


def affected_lineages(session: Session, tenant: str, name: str, new_hash: str) -> Sequence[Affected]:
    """Active revisions (the newest where none is) whose plans rest on another cluster of this name."""
    at = func.coalesce(LineageRow.active_revision, LineageRow.newest_revision)
    query = (
        select(RevisionRow.plan_id, LineageRow.lineage_id, LineageRow.name, RevisionRow.revision)
        .join(
            RevisionRow,
            (RevisionRow.tenant == LineageRow.tenant)
            & (RevisionRow.lineage_id == LineageRow.lineage_id)
            & (RevisionRow.revision == at),
        )
        .join(PlanRow, (PlanRow.tenant == RevisionRow.tenant) & (PlanRow.plan_id == RevisionRow.plan_id))
        .where(
            LineageRow.tenant == tenant,
            PlanRow.cluster_hash.in_(_named(tenant, name)),
            PlanRow.cluster_hash != new_hash,
        )
        .order_by(LineageRow.created_at_us, LineageRow.lineage_id)
    )
    return [
        Affected(plan_id=plan_id, lineage_id=lineage_id, lineage_name=lineage, revision=revision)
        for plan_id, lineage_id, lineage, revision in session.execute(query)
    ]


def affected_plans(session: Session, tenant: str, cluster_hash: str) -> Sequence[Affected]:
    """Plans for one description that no lineage holds, the newest one of each request."""
    held = select(RevisionRow.plan_id).where(RevisionRow.tenant == tenant)
    query = (
        select(PlanRow.plan_id, PlanRow.request_hash)
        .where(PlanRow.tenant == tenant, PlanRow.cluster_hash == cluster_hash, PlanRow.plan_id.not_in(held))
        .order_by(PlanRow.created_at_us.desc(), PlanRow.plan_id)
    )
    newest_of: dict[str, str] = {}
    for plan_id, request_hash in session.execute(query):
        newest_of.setdefault(request_hash, plan_id)
    return [Affected(plan_id=plan_id) for plan_id in newest_of.values()]


def newest_of(session: Session, tenant: str, names: Iterable[str]) -> dict[str, ClusterRevisionRow]:
    """As `newest`, of many names at once; without those that have no revision."""
    row = ClusterRevisionRow
    here = (row.tenant == tenant) & row.name.in_(list(names))
    last = select(row.name, func.max(row.revision)).where(here).group_by(row.name)
    query = select(row).where(here, tuple_(row.name, row.revision).in_(last))
    return {found.name: found for found in session.scalars(query)}


def newest_documents(session: Session, tenant: str, names: Iterable[str]) -> dict[str, str]:
    """Hashes of the cluster descriptions of names that were stored last."""
    row = DocumentRow
    query = (
        select(row.name, row.content_hash)
        .where(row.tenant == tenant, row.kind == DocumentKind.CLUSTER, row.name.in_(list(names)))
        .order_by(row.created_at_us.desc(), row.content_hash)
    )
    found: dict[str, str] = {}
    for name, content_hash in session.execute(query):
        found.setdefault(name, content_hash)
    return found


def nums_plans(session: Session, tenant: str, names: Iterable[str]) -> dict[str, int]:
    """Numbers of plans that rest on any description of each cluster; without those that have none."""
    same = (DocumentRow.tenant == PlanRow.tenant) & (DocumentRow.content_hash == PlanRow.cluster_hash)
    query = (
        select(DocumentRow.name, func.count())
        .select_from(PlanRow)
        .join(DocumentRow, same)
        .where(PlanRow.tenant == tenant, DocumentRow.name.in_(list(names)))
        .group_by(DocumentRow.name)
    )
    return dict(session.execute(query).all())


def _named(tenant: str, name: str) -> Select[str]:
    return documents.named(tenant, DocumentKind.CLUSTER, name)
