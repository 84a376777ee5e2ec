"""Plans that searches had found before their end. They are kept apart, so that lists show what is proven."""

import zlib

from sqlalchemy import select
from sqlalchemy.orm import Session

from planner.schema import Plan
from profiles_db import jobs
from profiles_db.insert import insert_if_absent
from profiles_db.tables import JobRow, ProvisionalPlanRow, now_us


def put(session: Session, job: JobRow, plan: Plan) -> bool:
    """Keep the best plan so far of a run; returns False when a later run has taken over."""
    if not jobs.holds(session, job.job_id, fence=job.fence):
        return False
    values = {
        "job_id": job.job_id,
        "plan_id": plan.envelope.plan_id,
        "tenant": job.tenant,
        "created_at_us": now_us(),
        "body": zlib.compress(plan.to_json().encode()),
    }
    insert_if_absent(session, ProvisionalPlanRow, values)
    return True


def latest(session: Session, job_id: str) -> str | None:
    """Identity of the last one of a job."""
    query = select(ProvisionalPlanRow.plan_id).where(ProvisionalPlanRow.job_id == job_id)
    return session.scalar(query.order_by(ProvisionalPlanRow.created_at_us.desc()).limit(1))


def is_stored(session: Session, tenant: str, plan_id: str) -> bool:
    """Whether there is such a plan."""
    query = select(ProvisionalPlanRow.plan_id).where(
        ProvisionalPlanRow.tenant == tenant, ProvisionalPlanRow.plan_id == plan_id
    )
    return session.scalar(query.limit(1)) is not None


def get_bytes(session: Session, tenant: str, plan_id: str) -> bytes | None:
    """JSON of a plan, the same bytes every time; the first where several jobs came by it."""
    query = select(ProvisionalPlanRow.body).where(
        ProvisionalPlanRow.tenant == tenant, ProvisionalPlanRow.plan_id == plan_id
    )
    body = session.scalar(query.order_by(ProvisionalPlanRow.created_at_us).limit(1))
    return None if body is None else zlib.decompress(body)
