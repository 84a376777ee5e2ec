"""What reports and comparisons look like from outside."""

from pydantic import BaseModel

from api.http.dependencies import timestamp
from api.service.measurements import Comparison, Drift, DriftingPlan
from profiles_db.tables import MeasurementRow


class Report(BaseModel):
    """What a job reported of a range of steps."""

    measurement_id: str
    plan: str
    run: str
    first_step: int
    last_step: int
    num_ranks: int
    step_time_ns: int
    step_time_p99_ns: int | None
    peak_bytes: int | None
    reserved_bytes: int | None
    device: str
    torch_version: str
    measured_at: str
    reported_by: str
    reported_at: str
    links: dict[str, str]

    @classmethod
    def of(cls, row: MeasurementRow) -> "Report":
        """Show a row."""
        return cls(
            measurement_id=row.measurement_id,
            plan=row.plan_id,
            run=row.run,
            first_step=row.first_step,
            last_step=row.last_step,
            num_ranks=row.num_ranks,
            step_time_ns=row.step_time_ns,
            step_time_p99_ns=row.step_time_p99_ns,
            peak_bytes=row.peak_bytes,
            reserved_bytes=row.reserved_bytes,
            device=row.device,
            torch_version=row.torch_version,
            measured_at=timestamp(row.measured_at_us),
            reported_by=row.submitted_by,
            reported_at=timestamp(row.created_at_us),
            links={"plan": f"/v1/plans/{row.plan_id}", "comparison": f"/v1/plans/{row.plan_id}/measurements"},
        )


class ReportPage(BaseModel):
    """Reports, newest first; `next` is the cursor of the next page."""

    items: list[Report]
    next: str | None


class PredictedAgainstMeasured(BaseModel):
    """A plan's predictions beside what jobs reported. Ratios are measured over predicted, by the median of the last
    five reports, and null while there are fewer.
    """

    plan: str
    name: str
    predicted_step_time_ns: int
    predicted_peak_bytes: int
    """Allocated on the fullest rank."""
    num_reports: int
    last: Report | None
    step_ratio: float | None
    peak_ratio: float | None
    drift: list[Drift]
    """Empty where the numbers are within the bounds of this server."""
    words: str
    links: dict[str, str]

    @classmethod
    def of(cls, found: Comparison) -> "PredictedAgainstMeasured":
        """Show a comparison."""
        body, plan_id = found.plan.body, found.plan.envelope.plan_id
        assert body.predictions is not None, "only plans that predict something are compared"
        return cls(
            plan=plan_id,
            name=body.name,
            predicted_step_time_ns=body.predictions.step_time_ns,
            predicted_peak_bytes=body.predictions.peak.allocated_bytes,
            num_reports=found.num_reports,
            last=None if found.last is None else Report.of(found.last),
            step_ratio=found.step_ratio,
            peak_ratio=found.peak_ratio,
            drift=list(found.drift),
            words=found.words,
            links={"plan": f"/v1/plans/{plan_id}", "reports": f"/v1/measurements?plan={plan_id}"},
        )


class DriftingPlanView(BaseModel):
    """A plan whose steps are not what it predicts."""

    plan: str
    name: str
    step_ratio: float | None
    peak_ratio: float | None
    drift: list[Drift]
    words: str
    reported_at: str

    @classmethod
    def of(cls, found: DriftingPlan) -> "DriftingPlanView":
        """Show a plan."""
        row = found.row
        return cls(
            plan=row.plan_id,
            name=row.name,
            step_ratio=row.step_ratio,
            peak_ratio=row.peak_ratio,
            drift=list(found.drift),
            words=found.words,
            reported_at=timestamp(row.last_at_us),
        )
