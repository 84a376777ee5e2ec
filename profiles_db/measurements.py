"""What jobs report of their steps, and how far that is from what their plans predict."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.orm import Session

from planner.schema import Measurement, PlanBody
from profiles_db.change import num_changed
from profiles_db.insert import insert_if_absent
from profiles_db.pages import Cursor, Page, newest_first, page_of
from profiles_db.tables import MeasuredPlanRow, MeasurementRow, now_us

NUM_COMPARED = 5
"""Newest reports that predictions are held against, and the fewest that say anything."""
CURRENT_US = 7 * 86_400 * 1_000_000
"""A plan whose newest report is older raises no alarm: nothing runs under it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far measured numbers may be from predicted ones, as fractions of these."""

    step: float
    peak: float

    def is_slower(self, row: MeasuredPlanRow) -> bool:
        """Steps take longer than predicted."""
        return row.step_ratio is not None and row.step_ratio > 1 + self.step

    def is_faster(self, row: MeasuredPlanRow) -> bool:
        """Steps take less time than predicted."""
        return row.step_ratio is not None and row.step_ratio < 1 - self.step

    def needs_more_memory(self, row: MeasuredPlanRow) -> bool:
        """Less than predicted is no drift: the plan still fits."""
        return row.peak_ratio is not None and row.peak_ratio > 1 + self.peak


def id_of(measurement: Measurement) -> str:
    """Identity within a tenant: that of plan, run and range."""
    parts = (measurement.plan_id, measurement.run, measurement.first_step, measurement.last_step)
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
    return f"mea_{digest[:28]}"


def add(
    session: Session, tenant: str, measurement: Measurement, body: PlanBody, *, submitted_by: str
) -> tuple[MeasurementRow, bool]:
    """Store a report of a plan that predicts something; one that is there already stays as it is.

    Returns the row, and whether it is new.
    """
    assert body.predictions is not None, "who calls has looked"
    plan = {
        "tenant": tenant,
        "plan_id": measurement.plan_id,
        "name": body.name,
        "profile_hash": body.inputs.profile,
        "step_time_ns": body.predictions.step_time_ns,
        "peak_bytes": body.predictions.peak.allocated_bytes,
        "last_at_us": now_us(),
    }
    insert_if_absent(session, MeasuredPlanRow, plan)
    # Locked before the report refers to it, so that two reports wait for each other, and the later sees both.
    compared = session.get(
        MeasuredPlanRow, (tenant, measurement.plan_id), with_for_update=True, populate_existing=True
    )
    assert compared is not None, "it was inserted if it was not there"
    values = measurement.model_dump(exclude={"schema_version", "measured_at"})
    values |= {"tenant": tenant, "measurement_id": id_of(measurement), "submitted_by": submitted_by}
    values |= {"measured_at_us": measurement.measured_at_us, "created_at_us": now_us()}
    is_new = insert_if_absent(session, MeasurementRow, values)
    if is_new:
        _compare(session, compared)
    row = session.get(MeasurementRow, (tenant, values["measurement_id"]))
    assert row is not None, "nothing deletes a report while it is added"
    return row, is_new


def _compare(session: Session, plan: MeasuredPlanRow) -> None:
    newest = page(session, plan.tenant, plan_id=plan.plan_id, limit=NUM_COMPARED).items
    plan.last_at_us = newest[0].created_at_us
    if len(newest) < NUM_COMPARED:
        return
    peaks = [row.peak_bytes for row in newest if row.peak_bytes is not None]
    plan.step_ratio = _ratio([row.step_time_ns for row in newest], plan.step_time_ns)
    plan.peak_ratio = _ratio(peaks, plan.peak_bytes) if peaks else None


def _ratio(measured: Sequence[int], predicted: int) -> float | None:
    return median(measured) / predicted if predicted else None


def page(
    session: Session, tenant: str, *, plan_id: str | None = None, cursor: Cursor | None = None, limit: int = 50
) -> Page[MeasurementRow]:
    """Reports, newest first."""
    query = select(MeasurementRow).where(MeasurementRow.tenant == tenant)
    if plan_id is not None:
        query = query.where(MeasurementRow.plan_id == plan_id)
    ordered = newest_first(
        query, MeasurementRow.created_at_us, MeasurementRow.measurement_id, cursor=cursor, limit=limit
    )
    return page_of(session.scalars(ordered).all(), "measurement_id", limit=limit)


def num_reports(session: Session, tenant: str, plan_id: str) -> int:
    """Number of reports of a plan."""
    query = select(func.count()).select_from(MeasurementRow)
    return session.scalar(query.where(MeasurementRow.tenant == tenant, MeasurementRow.plan_id == plan_id)) or 0


def measured_plan(session: Session, tenant: str, plan_id: str) -> MeasuredPlanRow | None:
    """How a plan compares; None where nothing was reported."""
    return session.get(MeasuredPlanRow, (tenant, plan_id))


def num_measured(session: Session, tenant: str) -> int:
    """Number of plans that something was reported of."""
    query = select(func.count()).select_from(MeasuredPlanRow).where(MeasuredPlanRow.tenant == tenant)
    return session.scalar(query) or 0


def drifting(session: Session, tenant: str, bounds: Bounds, *, limit: int) -> Sequence[MeasuredPlanRow]:
    """Plans whose newest reports are recent and beyond a bound; the newest report first."""
    query = select(MeasuredPlanRow).where(MeasuredPlanRow.tenant == tenant, *_drifts(bounds))
    ordered = query.order_by(MeasuredPlanRow.last_at_us.desc(), MeasuredPlanRow.plan_id).limit(limit)
    return session.scalars(ordered).all()


def num_drifting(session: Session, bounds: Bounds, tenant: str | None = None) -> int:
    """Number of plans that `drifting` finds, over all tenants unless one is given."""
    query = select(func.count()).select_from(MeasuredPlanRow).where(*_drifts(bounds))
    if tenant is not None:
        query = query.where(MeasuredPlanRow.tenant == tenant)
    return session.scalar(query) or 0


def _drifts(bounds: Bounds) -> tuple[ColumnElement[bool], ...]:
    row = MeasuredPlanRow
    beyond = or_(
        row.step_ratio > 1 + bounds.step, row.step_ratio < 1 - bounds.step, row.peak_ratio > 1 + bounds.peak
    )
    return row.last_at_us >= now_us() - CURRENT_US, beyond


def remove_before(session: Session, before_us: int) -> int:
    """Delete old reports, and plans that no other measures; returns the number of reports.

    A plan with too few left compares to nothing again: the next report must not raise an alarm by those that went.
    """
    num = num_changed(session, delete(MeasurementRow).where(MeasurementRow.created_at_us < before_us))
    left = select(MeasurementRow.plan_id).where(
        MeasurementRow.tenant == MeasuredPlanRow.tenant, MeasurementRow.plan_id == MeasuredPlanRow.plan_id
    )
    num_changed(session, delete(MeasuredPlanRow).where(~left.exists(), MeasuredPlanRow.last_at_us < before_us))
    num_left = left.with_only_columns(func.count()).scalar_subquery()
    few = update(MeasuredPlanRow).where(MeasuredPlanRow.step_ratio.is_not(None), num_left < NUM_COMPARED)
    num_changed(session, few.values(step_ratio=None, peak_ratio=None))
    return num
