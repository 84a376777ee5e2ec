"""`/jobs`: the queue, how far each search is, why one failed; cancel one, try one again."""

from typing import Annotated, Literal

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from api.dashboard.dependencies import PlanningViewer, Viewer, page_router
from api.dashboard.rendering import address, page
from api.http.dependencies import JobId, ServicesDep
from api.http.jobs.views import Job
from api.http.overview.endpoints import OverviewView
from api.service.callers import Scope
from api.service.jobs import JobView
from profiles_db.tables import JobState

router = page_router()

State = Literal["", "queued", "running", "succeeded", "failed", "cancelled", "parked"]
Cursor = Annotated[str, Query(max_length=500)]


@router.get("/jobs")
def show_jobs(
    viewer: Viewer, request: Request, services: ServicesDep, state: State = "", cursor: Cursor = ""
) -> Response:
    """A page of jobs, newest first, that refreshes itself while some go on."""
    chosen = JobState(state) if state else None
    found = services.jobs.page(viewer.tenant, chosen, cursor=cursor or None, limit=50)
    counts = OverviewView.of(services.overview.of(viewer.tenant))
    return page(
        request,
        "jobs.html",
        jobs=[Job.of(view) for view in found.items],
        next=found.next,
        counts=counts,
        is_live=bool(counts.jobs[JobState.QUEUED] or counts.jobs[JobState.RUNNING]),
        states=[state.value for state in JobState],
        state=state,
        cursor=cursor,
        may_plan=Scope.PLAN in viewer.scopes,
        retryable={view.job.job_id for view in found.items if _may_retry(view)},
    )


@router.get("/jobs/{job_id}")
def show_job(viewer: Viewer, request: Request, services: ServicesDep, job_id: JobId) -> Response:
    """One job, live."""
    view = services.jobs.get(viewer.tenant, job_id)
    return page(
        request,
        "job.html",
        job=Job.of(view),
        is_live=not view.is_final,
        may_plan=Scope.PLAN in viewer.scopes,
        may_retry=_may_retry(view),
    )


@router.post("/jobs/{job_id}/cancel")
async def cancel_job(viewer: PlanningViewer, services: ServicesDep, job_id: JobId) -> Response:
    """End a job."""
    await run_in_threadpool(services.jobs.cancel, viewer, job_id)
    return RedirectResponse(address(f"/jobs/{job_id}", notice="cancelled"), 303)


@router.post("/jobs/{job_id}/retry")
async def retry_job(viewer: PlanningViewer, services: ServicesDep, job_id: JobId) -> Response:
    """Ask again for what a job had no plan for, and show the new job."""
    job = await run_in_threadpool(services.plans.retry, viewer, job_id)
    return RedirectResponse(address(f"/jobs/{job.job_id}", notice="retried"), 303)


def _may_retry(view: JobView) -> bool:
    """Whether the same request may fare better."""
    is_permanent = bool((view.job.problem or {}).get("permanent", False))
    return view.is_final and view.job.plan_id is None and not is_permanent
