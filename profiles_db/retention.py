"""Delete what is old and that nobody points at. Only an operator's command does this; serving never deletes.

What stays whatever its age: the active revision of a lineage, its newest ones, every revision that was active since
the limit, plans that any revision, any kept regeneration, any report of a job since the limit or running job names,
and all requests and documents that are used. Jobs stay too; one whose plan is deleted says so, and the same request
is planned anew.
"""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, or_, select, union, update
from sqlalchemy.orm import Session

from profiles_db import measurements, profiled
from profiles_db.change import num_changed
from profiles_db.tables import (
    ActivationRow,
    ClusterRevisionRow,
    DocumentRow,
    JobEventRow,
    JobRow,
    JobState,
    LineageRow,
    MeasuredPlanRow,
    Notice,
    PlanRow,
    RegenerationItemRow,
    RegenerationRow,
    RegenerationState,
    RequestRow,
    Review,
    RevisionRow,
)

PRUNED = {"code": "plan_pruned", "message": "the plan was deleted as too old; post the request again"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many rows were deleted."""

    regenerations: int
    revisions: int
    plans: int
    job_events: int
    measurements: int
    requests: int
    documents: int


def prune(session: Session, *, keep: int, before_us: int) -> Pruned:
    """Delete what was made before a moment and is not kept.

    Args:
        session: a transaction that may write.
        keep: newest revisions of each lineage that stay whatever their age.
        before_us: microseconds since 1970.
    """
    num_regenerations = _regenerations(session, before_us)
    num_revisions = _revisions(session, keep, before_us)
    num_measurements = measurements.remove_before(session, before_us)
    num_plans = _plans(session, before_us)
    num_events = num_changed(session, delete(JobEventRow).where(JobEventRow.at_us < before_us, _has_ended()))
    num_requests = _requests(session, before_us)
    num_documents = _documents(session, before_us)
    return Pruned(
        regenerations=num_regenerations,
        revisions=num_revisions,
        plans=num_plans,
        job_events=num_events,
        measurements=num_measurements,
        requests=num_requests,
        documents=num_documents,
    )


def _regenerations(session: Session, before_us: int) -> int:
    old = (
        (RegenerationRow.state != RegenerationState.RUNNING)
        & (RegenerationRow.finished_at_us < before_us)
        & (RegenerationRow.notice != Notice.WAITING)
    )
    ids = select(RegenerationRow.regeneration_id).where(old)
    waits = (
        select(RegenerationItemRow.regeneration_id)
        .where(RegenerationItemRow.review == Review.WAITING, RegenerationItemRow.regeneration_id.in_(ids))
        .distinct()
    )
    waiting = set(session.scalars(waits))
    gone = [regeneration_id for regeneration_id in session.scalars(ids) if regeneration_id not in waiting]
    for regeneration_id in gone:
        num_changed(
            session, delete(RegenerationItemRow).where(RegenerationItemRow.regeneration_id == regeneration_id)
        )
        num_changed(session, delete(RegenerationRow).where(RegenerationRow.regeneration_id == regeneration_id))
    return len(gone)


def _revisions(session: Session, keep: int, before_us: int) -> int:
    """Numbers of what is left stay as they are, so that history does not tell another story."""
    num_deleted = 0
    for lineage in session.scalars(select(LineageRow)):
        here = (RevisionRow.tenant == lineage.tenant) & (RevisionRow.lineage_id == lineage.lineage_id)
        moves = (ActivationRow.tenant == lineage.tenant) & (ActivationRow.lineage_id == lineage.lineage_id)
        # A revision was active until the pointer moved on, so both ends of a recent move count.
        recent = moves & (ActivationRow.created_at_us >= before_us)
        held: set[int | None] = set(session.scalars(select(ActivationRow.revision).where(recent)))
        held |= set(session.scalars(select(ActivationRow.previous_revision).where(recent)))
        held |= {lineage.active_revision, lineage.newest_revision}
        old = here & (RevisionRow.created_at_us < before_us)
        old &= RevisionRow.revision <= lineage.newest_revision - max(1, keep)
        old &= RevisionRow.revision.not_in([number for number in held if number is not None])
        num_deleted += num_changed(session, delete(RevisionRow).where(old))
    return num_deleted


def _plans(session: Session, before_us: int) -> int:
    same = RevisionRow.tenant == PlanRow.tenant
    held = select(RevisionRow.plan_id).where(same, RevisionRow.plan_id == PlanRow.plan_id).exists()
    item = RegenerationItemRow
    named = (
        select(item.number)
        .where(
            item.tenant == PlanRow.tenant,
            or_(item.old_plan_id == PlanRow.plan_id, item.new_plan_id == PlanRow.plan_id),
        )
        .exists()
    )
    here = MeasuredPlanRow.tenant == PlanRow.tenant
    measured = select(MeasuredPlanRow.plan_id).where(here, MeasuredPlanRow.plan_id == PlanRow.plan_id).exists()
    is_old = PlanRow.created_at_us < before_us
    old = session.execute(select(PlanRow.tenant, PlanRow.plan_id).where(is_old, ~held, ~named, ~measured)).all()
    for tenant, plan_id in old:
        num_changed(
            session,
            update(JobRow)
            .where(JobRow.tenant == tenant, JobRow.plan_id == plan_id)
            .values(state=JobState.FAILED, plan_id=None, problem=PRUNED),
        )
        num_changed(session, delete(PlanRow).where(PlanRow.tenant == tenant, PlanRow.plan_id == plan_id))
    return len(old)


def _requests(session: Session, before_us: int) -> int:
    jobs = select(JobRow.job_id).where(
        JobRow.tenant == RequestRow.tenant, JobRow.request_hash == RequestRow.request_hash
    )
    plans = select(PlanRow.plan_id).where(
        PlanRow.tenant == RequestRow.tenant, PlanRow.request_hash == RequestRow.request_hash
    )
    old = RequestRow.created_at_us < before_us
    return num_changed(session, delete(RequestRow).where(old, ~jobs.exists(), ~plans.exists()))


def _documents(session: Session, before_us: int) -> int:
    used = union(
        *(
            select(column.class_.tenant, column).where(column.is_not(None))
            for column in (
                RequestRow.model_hash,
                RequestRow.cluster_hash,
                RequestRow.profile_hash,
                PlanRow.model_hash,
                PlanRow.cluster_hash,
                ClusterRevisionRow.cluster_hash,
            )
        )
    )
    kept = {(tenant, content_hash) for tenant, content_hash in session.execute(used)}
    old = select(DocumentRow.tenant, DocumentRow.content_hash).where(DocumentRow.created_at_us < before_us)
    gone = [(tenant, hash_) for tenant, hash_ in session.execute(old) if (tenant, hash_) not in kept]
    for tenant, content_hash in gone:
        profiled.remove(session, tenant, content_hash)
        is_it = (DocumentRow.tenant == tenant) & (DocumentRow.content_hash == content_hash)
        num_changed(session, delete(DocumentRow).where(is_it))
    return len(gone)


def _has_ended() -> ColumnElement[bool]:
    finals = [state for state in JobState if state.is_final]
    return JobEventRow.job_id.in_(select(JobRow.job_id).where(JobRow.state.in_(finals)))
