"""What a cluster of a name was when, and which plans rest on it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, func, select
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


def newest_document(session: Session, tenant: str, name: str) -> str | None:
    """Hash of the cluster description of a name that was stored last."""
    query = _named(tenant, name).order_by(DocumentRow.created_at_us.desc(), DocumentRow.content_hash).limit(1)
    return session.scalars(query).first()


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


def num_plans(session: Session, tenant: str, name: str) -> int:
    """Number of plans that rest on any description of a cluster."""
    query = select(func.count()).select_from(PlanRow)
    return (
        session.scalar(query.where(PlanRow.tenant == tenant, PlanRow.cluster_hash.in_(_named(tenant, name)))) or 0
    )


def _named(tenant: str, name: str) -> Select[str]:
    return documents.named(tenant, DocumentKind.CLUSTER, name)
