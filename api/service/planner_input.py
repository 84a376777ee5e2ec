"""What a planner process reads: the request, after the decisions that its search starts from."""

from sqlalchemy.orm import Session

from planner.schema import Plan, PlanRequest
from profiles_db import plans, requests
from profiles_db.tables import JobRow


def planner_input(session: Session, job: JobRow) -> tuple[PlanRequest, bytes]:
    """The request of a job, and its text.

    That is the request alone where it names no earlier plan, or one kept no longer, which the planner refuses.
    """
    request = requests.get(session, job.tenant, job.request_hash)
    assert request is not None, "foreign keys keep the request of a job"
    stored = None if request.warm_start is None else plans.get_bytes(session, job.tenant, request.warm_start)
    if stored is None:
        return request, request.canonical_bytes()
    decisions = Plan.from_json(stored, source="stored plan").body.decisions
    earlier = b"null" if decisions is None else decisions.model_dump_json(exclude_defaults=True).encode()
    return request, b'{"warm_start":' + earlier + b',"request":' + request.canonical_bytes() + b"}"
