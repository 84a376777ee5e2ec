"""What a planner process reads: the request, after the decisions that its search starts from."""

from sqlalchemy.orm import Session

from planner.schema import Plan, PlanRequest
from profiles_db import plans, provisional, requests
from profiles_db.tables import JobRow


def planner_input(session: Session, job: JobRow) -> tuple[PlanRequest, bytes]:
    """The request of a job, and its text.

    The search starts from the best plan that an earlier start of the job had found before its process died, else
    from the plan that the request names. Where there is neither, or the named one is kept no longer (which the
    planner refuses), that is the request alone.
    """
    request = requests.get(session, job.tenant, job.request_hash)
    assert request is not None, "foreign keys keep the request of a job"
    stored = _best_so_far(session, job)
    if stored is None and request.warm_start is not None:
        stored = plans.get_bytes(session, job.tenant, request.warm_start)
    if stored is None:
        return request, request.canonical_bytes()
    decisions = Plan.from_json(stored, source="stored plan").body.decisions
    earlier = b"null" if decisions is None else decisions.model_dump_json(exclude_defaults=True).encode()
    return request, b'{"warm_start":' + earlier + b',"request":' + request.canonical_bytes() + b"}"


def _best_so_far(session: Session, job: JobRow) -> bytes | None:
    plan_id = provisional.latest(session, job.job_id)
    return None if plan_id is None else provisional.get_bytes(session, job.tenant, plan_id)
