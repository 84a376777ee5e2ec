"""How much a tenant has of everything, and how busy the service is."""

from dataclasses import dataclass

from profiles_db import executors, jobs, measurements, plans, regenerations
from profiles_db.engine import Database
from profiles_db.measurements import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantOverview:
    """Counts of one tenant; workers and slots are those of the service."""

    plans_by_outcome: dict[str, int]
    jobs_by_state: dict[str, int]
    num_regenerations_running: int
    num_reviews_waiting: int
    num_plans_measured: int
    num_plans_drifting: int
    num_workers: int
    num_slots: int
    """Searches that run at a time."""


class OverviewService:
    """Counts, each with one query."""

    def __init__(self, database: Database, bounds: Bounds) -> None:
        self._database = database
        self._bounds = bounds

    def of(self, tenant: str) -> TenantOverview:
        """What a tenant has now."""
        with self._database.read() as session:
            running, waiting = regenerations.count_running(session, tenant)
            workers = [row for row in executors.everyone(session) if row.num_slots and row.heartbeat_at_us]
            return TenantOverview(
                plans_by_outcome=plans.count_by_outcome(session, tenant),
                jobs_by_state=jobs.count_by_state(session, tenant),
                num_regenerations_running=running,
                num_reviews_waiting=waiting,
                num_plans_measured=measurements.num_measured(session, tenant),
                num_plans_drifting=measurements.num_drifting(session, self._bounds, tenant),
                num_workers=len(workers),
                num_slots=sum(row.num_slots for row in workers),
            )
