"""Jobs: attempts to solve a request. Every start raises the fence; an older start can no longer write."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from profiles_db.change import num_changed
from profiles_db.insert import insert_if_absent
from profiles_db.pages import Cursor, Page, newest_first, page_of
from profiles_db.tables import JobEventRow, JobPriority, JobRow, JobState, now_us

_UNFINISHED = (JobState.QUEUED, JobState.RUNNING)


def job_id_of(tenant: str, request_hash: str, planner_version: str, attempt: int) -> str:
    """Identity of a job: the same work has the same id, and tenants cannot see each other's."""
    return f"{tenant}:{request_hash}:{planner_version}:{attempt}"


def latest(session: Session, tenant: str, request_hash: str, planner_version: str) -> JobRow | None:
    """The newest attempt."""
    query = (
        select(JobRow)
        .where(
            JobRow.tenant == tenant,
            JobRow.request_hash == request_hash,
            JobRow.planner_version == planner_version,
        )
        .order_by(JobRow.attempt.desc())
        .limit(1)
    )
    return session.scalar(query)


def add(
    session: Session,
    tenant: str,
    request_hash: str,
    planner_version: str,
    *,
    attempt: int,
    submitted_by: str,
    priority: JobPriority = JobPriority.LAUNCHER,
) -> JobRow:
    """The job of an attempt; when two ask at once, both get the same one."""
    job_id = job_id_of(tenant, request_hash, planner_version, attempt)
    values = {
        "job_id": job_id,
        "tenant": tenant,
        "request_hash": request_hash,
        "planner_version": planner_version,
        "attempt": attempt,
        "submitted_by": submitted_by,
        "state": JobState.QUEUED,
        "priority": priority,
        "is_released": False,
        "fence": 0,
        "num_interruptions": 0,
        "created_at_us": now_us(),
    }
    insert_if_absent(session, JobRow, values)
    job = session.get(JobRow, job_id)
    assert job is not None
    return job


def get(session: Session, tenant: str, job_id: str) -> JobRow | None:
    """A job of a tenant by its id."""
    return session.scalar(select(JobRow).where(JobRow.job_id == job_id, JobRow.tenant == tenant))


def page(
    session: Session,
    tenant: str,
    *,
    state: JobState | None = None,
    cursor: Cursor | None = None,
    limit: int = 50,
) -> Page[JobRow]:
    """Jobs, newest first."""
    query = select(JobRow).where(JobRow.tenant == tenant)
    if state is not None:
        query = query.where(JobRow.state == state)
    rows = session.scalars(
        newest_first(query, JobRow.created_at_us, JobRow.job_id, cursor=cursor, limit=limit)
    ).all()
    return page_of(rows, "job_id", limit=limit)


def unfinished(session: Session) -> Sequence[JobRow]:
    """Jobs that are queued or running, oldest first."""
    query = select(JobRow).where(JobRow.state.in_(_UNFINISHED)).order_by(JobRow.created_at_us)
    return session.scalars(query).all()


def released(session: Session) -> Sequence[JobRow]:
    """Unfinished jobs that are on the durable queue, oldest first."""
    query = select(JobRow).where(JobRow.state.in_(_UNFINISHED), JobRow.is_released)
    return session.scalars(query.order_by(JobRow.created_at_us)).all()


def waiting(session: Session) -> Sequence[tuple[str, JobPriority]]:
    """Submitters and priorities of jobs that are not on the durable queue yet."""
    query = select(JobRow.submitted_by, JobRow.priority).where(
        JobRow.state == JobState.QUEUED, JobRow.is_released.is_(False)
    )
    return [(submitter, JobPriority(priority)) for submitter, priority in session.execute(query.distinct())]


def release(
    session: Session, submitted_by: str, priority: JobPriority, *, at_most: int
) -> Sequence[tuple[JobRow, int]]:
    """Take the oldest waiting jobs of a submitter, so that `at_most` of its jobs of this priority are released.

    Returns:
        Jobs, and how many of the same submitter and priority are ahead of each.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(func.hashtext(f"{priority} {submitted_by}"))))
    own = (JobRow.submitted_by == submitted_by, JobRow.priority == priority)
    ahead = select(func.count()).where(*own, JobRow.state.in_(_UNFINISHED), JobRow.is_released)
    num_ahead = session.scalar(ahead) or 0
    query = (
        select(JobRow)
        .where(*own, JobRow.state == JobState.QUEUED, JobRow.is_released.is_(False))
        .order_by(JobRow.created_at_us, JobRow.job_id)
        .limit(max(0, at_most - num_ahead))
    )
    taken = session.scalars(query).all()
    for job in taken:
        job.is_released = True
    return [(job, num_ahead + index) for index, job in enumerate(taken)]


def raise_priority(session: Session, job_id: str, priority: JobPriority) -> None:
    """Let a job be as urgent as the most urgent of those who wait for it."""
    session.execute(
        update(JobRow)
        .where(JobRow.job_id == job_id, JobRow.priority > priority, JobRow.state.in_(_UNFINISHED))
        .values(priority=priority)
        .execution_options(synchronize_session=False)
    )


def count_by_state(session: Session, tenant: str | None = None) -> dict[str, int]:
    """Number of jobs in each state, of a tenant or of all."""
    query = select(JobRow.state, func.count()).group_by(JobRow.state)
    rows = session.execute(query if tenant is None else query.where(JobRow.tenant == tenant))
    return dict(rows.all())


def count_queued(session: Session) -> dict[JobPriority, int]:
    """Number of queued jobs of each priority."""
    query = select(JobRow.priority, func.count()).where(JobRow.state == JobState.QUEUED).group_by(JobRow.priority)
    return {JobPriority(priority): number for priority, number in session.execute(query)}


def oldest_queued_us(session: Session) -> int | None:
    """When the job was added that has waited longest."""
    return session.scalar(select(func.min(JobRow.created_at_us)).where(JobRow.state == JobState.QUEUED))


def num_unfinished(session: Session, submitted_by: str) -> int:
    """Number of jobs of one submitter that are queued or running."""
    query = select(func.count()).where(JobRow.submitted_by == submitted_by, JobRow.state.in_(_UNFINISHED))
    return session.scalar(query) or 0


def start(session: Session, job_id: str) -> JobRow | None:
    """Begin a run; the returned row holds the new fence. None when the job is finished or unknown."""
    changed = num_changed(
        session,
        update(JobRow)
        .where(JobRow.job_id == job_id, JobRow.state.in_(_UNFINISHED))
        .values(state=JobState.RUNNING, fence=JobRow.fence + 1, started_at_us=now_us()),
    )
    return session.get(JobRow, job_id) if changed == 1 else None


def put_back(session: Session, job_id: str, *, fence: int) -> None:
    """End a run that was interrupted in good order, so that it can start again."""
    session.execute(
        update(JobRow)
        .where(JobRow.job_id == job_id, JobRow.fence == fence, JobRow.state == JobState.RUNNING)
        .values(state=JobState.QUEUED, num_interruptions=JobRow.num_interruptions + 1)
        .execution_options(synchronize_session=False)
    )


def finish(
    session: Session,
    job_id: str,
    *,
    fence: int,
    plan_id: str | None = None,
    problem: dict[str, Any] | None = None,
    failed: JobState = JobState.FAILED,
) -> bool:
    """Publish the result of a run; returns False when a later run has taken over or a result is there."""
    state = JobState.SUCCEEDED if plan_id is not None else failed
    changed = num_changed(
        session,
        update(JobRow)
        .where(JobRow.job_id == job_id, JobRow.fence == fence, JobRow.state.in_(_UNFINISHED))
        .values(state=state, plan_id=plan_id, problem=problem, finished_at_us=now_us()),
    )
    return changed == 1


def cancel(session: Session, tenant: str, job_id: str, problem: dict[str, Any]) -> bool:
    """End a job before it has a result; returns False when it has ended already, or is unknown."""
    changed = num_changed(
        session,
        update(JobRow)
        .where(JobRow.job_id == job_id, JobRow.tenant == tenant, JobRow.state.in_(_UNFINISHED))
        .values(state=JobState.CANCELLED, problem=problem, finished_at_us=now_us()),
    )
    return changed == 1


def still_running(session: Session, fences: Mapping[str, int]) -> set[str]:
    """Of runs given as job and fence, the jobs that these runs may still write to."""
    query = select(JobRow.job_id, JobRow.fence).where(JobRow.job_id.in_(fences), JobRow.state == JobState.RUNNING)
    return {job_id for job_id, fence in session.execute(query) if fences[job_id] == fence}


def holds(session: Session, job_id: str, *, fence: int) -> bool:
    """Whether a run may still write to its job; nobody can take it over before the transaction ends."""
    holder = select(JobRow.fence).where(JobRow.job_id == job_id, JobRow.state == JobState.RUNNING)
    return session.scalar(holder.with_for_update()) == fence


def add_event(session: Session, job_id: str, *, fence: int, data: dict[str, Any]) -> bool:
    """Append progress; returns False when a later run has taken over."""
    if not holds(session, job_id, fence=fence):
        return False
    last = session.scalar(select(func.max(JobEventRow.sequence)).where(JobEventRow.job_id == job_id))
    session.add(JobEventRow(job_id=job_id, sequence=(last or 0) + 1, at_us=now_us(), data=data))
    return True


def events_after(session: Session, job_id: str, sequence: int, *, limit: int = 1000) -> Sequence[JobEventRow]:
    """Progress after a sequence number, in order."""
    query = (
        select(JobEventRow)
        .where(JobEventRow.job_id == job_id, JobEventRow.sequence > sequence)
        .order_by(JobEventRow.sequence)
        .limit(limit)
    )
    return session.scalars(query).all()


def last_event(session: Session, job_id: str) -> JobEventRow | None:
    """The newest progress."""
    query = select(JobEventRow).where(JobEventRow.job_id == job_id).order_by(JobEventRow.sequence.desc()).limit(1)
    return session.scalar(query)
