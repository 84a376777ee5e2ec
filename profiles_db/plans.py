"""Plans of a tenant under their identity, and lists of them."""

import zlib
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from planner.schema import Plan, PlanBody
from profiles_db import documents
from profiles_db.insert import insert_if_absent
from profiles_db.pages import Cursor, Page, newest_first, page_of, sorted_page
from profiles_db.tables import DocumentKind, PlanRow, now_us


def put(session: Session, tenant: str, plan: Plan) -> bool:
    """Store a plan whose request is stored; returns False when the plan is already there."""
    body = plan.body
    predictions, certificate = body.predictions, body.certificate
    values = {
        "tenant": tenant,
        "plan_id": plan.envelope.plan_id,
        "request_hash": body.inputs.request,
        "model_hash": body.inputs.model,
        "cluster_hash": body.inputs.cluster,
        "planner_version": body.planner_version,
        "name": body.name,
        "outcome": body.outcome,
        "world_size": body.world_size,
        "step_time_ns": predictions.step_time_ns if predictions else None,
        "reserved_bytes": predictions.peak.reserved_bytes if predictions else None,
        "gap": certificate.gap if certificate else None,
        "created_at_us": now_us(),
        "body": zlib.compress(plan.to_json().encode()),
    }
    return insert_if_absent(session, PlanRow, values)


def get_bytes(session: Session, tenant: str, plan_id: str) -> bytes | None:
    """JSON of a plan, the same bytes every time."""
    body = session.scalar(select(PlanRow.body).where(PlanRow.tenant == tenant, PlanRow.plan_id == plan_id))
    return None if body is None else zlib.decompress(body)


def get_body(session: Session, tenant: str, plan_id: str) -> PlanBody | None:
    """What `get_bytes` says, read."""
    stored = get_bytes(session, tenant, plan_id)
    return None if stored is None else Plan.from_json(stored, source=f"stored plan {plan_id}").body


def num_of_other_versions(session: Session, planner_version: str) -> int:
    """Number of plans, over all tenants, that another version of the planner made."""
    query = select(func.count()).select_from(PlanRow).where(PlanRow.planner_version != planner_version)
    return session.scalar(query) or 0


def get_row(session: Session, tenant: str, plan_id: str) -> PlanRow | None:
    """The columns of a plan, without its body."""
    return session.get(PlanRow, (tenant, plan_id))


SORTABLE: dict[str, InstrumentedAttribute[Any]] = {
    "created": PlanRow.created_at_us,
    "step_time": PlanRow.step_time_ns,
    "memory": PlanRow.reserved_bytes,
    "gap": PlanRow.gap,
    "ranks": PlanRow.world_size,
}
"""Columns that lists can be in the order of, by their name outside."""


def page(
    session: Session,
    tenant: str,
    *,
    name: str | None = None,
    model_hash: str | None = None,
    model_name: str | None = None,
    cluster_hash: str | None = None,
    cluster_name: str | None = None,
    outcome: str | None = None,
    sort: str = "created",
    is_descending: bool = True,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[PlanRow]:
    """Plans without their bodies, newest first unless another order is wanted; `name` is any part of the name.

    Raises:
        InvalidCursor: the cursor is not from an earlier page in the same order.
    """
    query = select(PlanRow).where(PlanRow.tenant == tenant)
    if name is not None:
        query = query.where(PlanRow.name.icontains(name, autoescape=True))
    for column, wanted in (
        (PlanRow.model_hash, model_hash),
        (PlanRow.cluster_hash, cluster_hash),
        (PlanRow.outcome, outcome),
    ):
        if wanted is not None:
            query = query.where(column == wanted)
    if model_name is not None:
        query = query.where(PlanRow.model_hash.in_(documents.named(tenant, DocumentKind.MODEL, model_name)))
    if cluster_name is not None:
        query = query.where(PlanRow.cluster_hash.in_(documents.named(tenant, DocumentKind.CLUSTER, cluster_name)))
    if (sort, is_descending) != ("created", True):
        return sorted_page(
            session,
            query,
            SORTABLE[sort],
            PlanRow.plan_id,
            is_descending=is_descending,
            cursor=cursor,
            limit=limit,
        )
    newest = newest_first(query, PlanRow.created_at_us, PlanRow.plan_id, cursor=Cursor.of(cursor), limit=limit)
    return page_of(session.scalars(newest).all(), "plan_id", limit=limit)


def count_by_outcome(session: Session, tenant: str) -> dict[str, int]:
    """Number of plans of each outcome."""
    query = select(PlanRow.outcome, func.count()).where(PlanRow.tenant == tenant).group_by(PlanRow.outcome)
    return dict(session.execute(query).all())
