"""`/`: what goes on, at a glance."""

from fastapi import Request, Response

from api.dashboard.dependencies import Viewer, page_router
from api.dashboard.rendering import page
from api.http.dependencies import ServicesDep
from api.http.jobs.views import Job
from api.http.measurements.views import DriftingPlanView
from api.http.overview.endpoints import OverviewView
from api.http.plans.endpoints import PlanSummary
from api.http.regenerations.views import CurrentClusterView, Regeneration
from api.service.plans import PlanFilter
from profiles_db.tables import JobState

router = page_router()

_SHOWN = 8


@router.get("/")
def show_overview(viewer: Viewer, request: Request, services: ServicesDep) -> Response:
    """Counts, searches under way, the newest plans and regenerations, and what clusters have."""
    tenant = viewer.tenant
    running = services.jobs.page(tenant, JobState.RUNNING, cursor=None, limit=_SHOWN)
    plans = services.plans.page(tenant, PlanFilter(), cursor=None, limit=_SHOWN)
    regenerations = services.regenerations.page(tenant, cluster=None, cursor=None, limit=_SHOWN)
    clusters = services.clusters.currents(tenant, after=None, limit=_SHOWN)
    drifting = services.measurements.drifting(tenant, limit=_SHOWN)
    return page(
        request,
        "overview.html",
        counts=OverviewView.of(services.overview.of(tenant)),
        running=[Job.of(view) for view in running.items],
        plans=[PlanSummary.of(plan) for plan in plans.items],
        regenerations=[Regeneration.of(view) for view in regenerations.items],
        clusters=[CurrentClusterView.of(found) for found in clusters.items],
        drifting=[DriftingPlanView.of(found) for found in drifting],
        more_clusters=clusters.next is not None,
    )
