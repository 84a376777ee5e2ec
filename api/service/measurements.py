"""What jobs report of their steps, held against what their plans predict."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy.orm import Session

from api.quantities import percent
from api.service.callers import Caller
from api.service.errors import NoDecisions
from api.service.parsing import parse_document, parse_json
from api.service.simulations import SimulationService
from planner.schema import InconsistentRequest, Measurement, Plan
from profiles_db import documents, measurements
from profiles_db.engine import Database
from profiles_db.measurements import NUM_COMPARED, Bounds
from profiles_db.pages import Cursor, Page
from profiles_db.tables import MeasuredPlanRow, MeasurementRow


class Drift(StrEnum):
    """A way in which steps are not what their plan predicts."""

    SLOWER = "slower"
    FASTER = "faster"
    MORE_MEMORY = "more_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A plan that predicts something, beside what was reported of it."""

    plan: Plan
    num_reports: int
    last: MeasurementRow | None
    step_ratio: float | None
    """Measured over predicted, median of the newest reports; None while they are fewer than `NUM_COMPARED`."""
    peak_ratio: float | None
    drift: tuple[Drift, ...]
    words: str
    """What the numbers mean, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftingPlan:
    """A plan whose newest reports are beyond a bound."""

    row: MeasuredPlanRow
    drift: tuple[Drift, ...]
    words: str


class MeasurementService:
    """Reports in, comparisons out."""

    def __init__(self, database: Database, simulations: SimulationService, bounds: Bounds) -> None:
        self._database = database
        self._simulations = simulations
        self._bounds = bounds

    def add(self, caller: Caller, body: bytes) -> tuple[MeasurementRow, bool]:
        """Store a report; returns it, and whether it is new. The same range of the same run is stored once.

        Raises:
            InvalidJson, InvalidDocument: the body is no measurement.
            NotFound: the tenant has no such plan.
            NoDecisions: the plan is infeasible and predicts nothing.
            InconsistentRequest: the job had another number of ranks than the plan is for.
        """
        measurement = parse_document(Measurement, parse_json(body))
        plan = self._predicting(caller.tenant, measurement.plan_id).body
        if measurement.num_ranks != plan.world_size:
            raise InconsistentRequest(
                f"num_ranks: the job had {measurement.num_ranks} ranks, but plan {measurement.plan_id} is for "
                f"{plan.world_size}; name the plan that the job applied"
            )
        with self._database.write() as session:
            return measurements.add(session, caller.tenant, measurement, plan, submitted_by=caller.submitted_by)

    def page(self, tenant: str, *, plan_id: str | None, cursor: str | None, limit: int) -> Page[MeasurementRow]:
        """Reports, newest first.

        Raises:
            InvalidCursor: the cursor is not from an earlier page.
        """
        after = Cursor.of(cursor)
        with self._database.read() as session:
            return measurements.page(session, tenant, plan_id=plan_id, cursor=after, limit=limit)

    def compare(self, tenant: str, plan_id: str) -> Comparison:
        """What a plan predicts beside what was reported.

        Raises:
            NotFound: the tenant has no such plan.
            NoDecisions: it is infeasible and predicts nothing.
        """
        return self.compare_plan(tenant, self._predicting(tenant, plan_id))

    def compare_plan(self, tenant: str, plan: Plan) -> Comparison:
        """As `compare`, of a plan at hand that predicts something."""
        plan_id = plan.envelope.plan_id
        with self._database.read() as session:
            row = measurements.measured_plan(session, tenant, plan_id)
            number = measurements.num_reports(session, tenant, plan_id)
            newest = measurements.page(session, tenant, plan_id=plan_id, limit=1).items
            found = None if row is None else self._drifting(session, tenant, [row])[0]
        return Comparison(
            plan=plan,
            num_reports=number,
            last=newest[0] if newest else None,
            step_ratio=None if row is None else row.step_ratio,
            peak_ratio=None if row is None else row.peak_ratio,
            drift=() if found is None else found.drift,
            words=_few(number) if found is None or found.row.step_ratio is None else found.words,
        )

    def drifting(self, tenant: str, *, limit: int) -> list[DriftingPlan]:
        """Plans beyond a bound by reports of the last week, the newest report first."""
        with self._database.read() as session:
            rows = measurements.drifting(session, tenant, self._bounds, limit=limit)
            return self._drifting(session, tenant, rows)

    def num_drifting(self) -> int:
        """Number of plans that `drifting` finds, over all tenants."""
        with self._database.read() as session:
            return measurements.num_drifting(session, self._bounds)

    def _predicting(self, tenant: str, plan_id: str) -> Plan:
        plan = self._simulations.plan(tenant, plan_id)
        if plan.body.predictions is None:
            raise NoDecisions(plan_id)
        return plan

    def _drifting(self, session: Session, tenant: str, rows: Sequence[MeasuredPlanRow]) -> list[DriftingPlan]:
        names = documents.names(session, tenant, [row.profile_hash for row in rows if row.profile_hash])
        return [self._beyond(row, names.get(row.profile_hash or "", "")) for row in rows]

    def _beyond(self, row: MeasuredPlanRow, profile: str) -> DriftingPlan:
        found = {
            Drift.SLOWER: self._bounds.is_slower(row),
            Drift.FASTER: self._bounds.is_faster(row),
            Drift.MORE_MEMORY: self._bounds.needs_more_memory(row),
        }
        drift = tuple(one for one, holds in found.items() if holds)
        return DriftingPlan(row=row, drift=drift, words=self._words(row, drift, profile))

    def _words(self, row: MeasuredPlanRow, drift: tuple[Drift, ...], profile: str) -> str:
        last = f"median of the last {NUM_COMPARED} reports"
        step, peak = abs((row.step_ratio or 1.0) - 1), abs((row.peak_ratio or 1.0) - 1)
        if not drift:
            return f"Steps are as predicted: within {percent(self._bounds.step)} ({last})."
        said = {
            Drift.SLOWER: f"Steps take {percent(step)} longer than predicted",
            Drift.FASTER: f"Steps take {percent(step)} less time than predicted",
            Drift.MORE_MEMORY: f"The fullest rank allocates {percent(peak)} more than predicted",
        }
        whole = ". ".join(said[one] for one in drift)
        rests = f"profile {profile!r}, which is out of date" if row.profile_hash else "data sheets"
        return f"{whole} ({last}). The predictions rest on {rests}: measure again, and plan anew."


def _few(number: int) -> str:
    if not number:
        return "Nothing was reported yet."
    return f"{number} of the {NUM_COMPARED} reports that a comparison takes."
