"""Plans of a tenant under their identity, and lists of them."""

import zlib

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from planner.schema import Plan, PlanBody
from profiles_db.insert import insert_if_absent
from profiles_db.pages import Cursor, Page, newest_first, page_of
from profiles_db.tables import PlanRow, now_us


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


def page(
    session: Session,
    tenant: str,
    *,
    model_hash: str | None = None,
    cluster_hash: str | None = None,
    outcome: str | None = None,
    cursor: Cursor | None = None,
    limit: int = 50,
) -> Page[PlanRow]:
    """Plans, newest first, without their bodies."""
    query = select(PlanRow).where(PlanRow.tenant == tenant)
    if model_hash is not None:
        query = query.where(PlanRow.model_hash == model_hash)
    if cluster_hash is not None:
        query = query.where(PlanRow.cluster_hash == cluster_hash)
    if outcome is not None:
        query = query.where(PlanRow.outcome == outcome)
    rows = session.scalars(
        newest_first(query, PlanRow.created_at_us, PlanRow.plan_id, cursor=cursor, limit=limit)
    ).all()
    return page_of(rows, "plan_id", limit=limit)
