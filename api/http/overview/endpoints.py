"""`/v1/overview`."""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from api.http.dependencies import Reader, ServicesDep
from api.http.openapi import PROBLEM_RESPONSES
from api.service.overview import TenantOverview
from profiles_db.tables import JobState

router = APIRouter(prefix="/v1", tags=["overview"])


class OverviewView(BaseModel):
    """Counts of the caller's tenant; workers and slots are those of the whole service."""

    plans: dict[Literal["feasible", "infeasible"], int]
    jobs: dict[JobState, int]
    regenerations_running: int
    reviews_waiting: int
    plans_measured: int
    plans_drifting: int
    workers: int
    slots: int

    @classmethod
    def of(cls, found: TenantOverview) -> "OverviewView":
        """Show counts, those that are zero too."""
        outcomes = found.plans_by_outcome
        return cls(
            plans={"feasible": outcomes.get("feasible", 0), "infeasible": outcomes.get("infeasible", 0)},
            jobs={state: found.jobs_by_state.get(state, 0) for state in JobState},
            regenerations_running=found.num_regenerations_running,
            reviews_waiting=found.num_reviews_waiting,
            plans_measured=found.num_plans_measured,
            plans_drifting=found.num_plans_drifting,
            workers=found.num_workers,
            slots=found.num_slots,
        )


@router.get("/overview", summary="Count everything", response_model=OverviewView, responses=PROBLEM_RESPONSES)
def get_overview(caller: Reader, services: ServicesDep) -> Any:  # noqa: ANN401
    """Plans by outcome, jobs by state, regenerations that go on, revisions that wait for a person, workers."""
    return OverviewView.of(services.overview.of(caller.tenant))
