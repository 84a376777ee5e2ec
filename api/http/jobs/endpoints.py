"""`/v1/jobs`: state and progress."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.http.dependencies import CursorParameter, JobId, Limit, Planner, Reader, ServicesDep, timestamp
from api.http.jobs.views import Job, JobPage, JobProgress
from api.http.openapi import PROBLEM_RESPONSES
from api.service.jobs import JobView
from api.service.services import Services
from profiles_db.tables import JobEventRow, JobState

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

SILENCE_S = 15.0
"""A comment is sent after so much silence, so that proxies keep the stream open."""
LastEventId = Annotated[
    str, Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,9}$", description="Sent by clients that reconnect.")
]


@router.get("", summary="List jobs", response_model=JobPage, responses=PROBLEM_RESPONSES)
def list_jobs(
    caller: Reader,
    services: ServicesDep,
    state: JobState | None = None,
    cursor: CursorParameter = None,
    limit: Limit = 50,
) -> Any:  # noqa: ANN401
    """Newest first; `next` of a page is the `cursor` of the one after it."""
    page = services.jobs.page(caller.tenant, state, cursor=cursor, limit=limit)
    return JobPage(items=[Job.of(view) for view in page.items], next=page.next)


@router.get("/{job_id}", summary="Get a job", response_model=Job, responses=PROBLEM_RESPONSES)
def get_job(caller: Reader, services: ServicesDep, job_id: JobId) -> Any:  # noqa: ANN401
    """State, newest progress, and the plan or the problem when it has ended."""
    return Job.of(services.jobs.get(caller.tenant, job_id))


@router.delete("/{job_id}", summary="Cancel a job", response_model=Job, responses=PROBLEM_RESPONSES)
@router.post("/{job_id}/cancel", summary="Cancel a job", response_model=Job, responses=PROBLEM_RESPONSES)
def cancel_job(caller: Planner, services: ServicesDep, job_id: JobId) -> Any:  # noqa: ANN401
    """Stops its search and frees its place; a job that has ended is left as it is. Equal requests share one job:
    whoever waits for it gets the problem `job_cancelled`, and the next request starts anew.
    """
    return Job.of(services.jobs.cancel(caller, job_id))


@router.post("/{job_id}/retry", summary="Try a job again", response_model=Job, responses=PROBLEM_RESPONSES)
def retry_job(caller: Planner, services: ServicesDep, job_id: JobId) -> Any:  # noqa: ANN401
    """Posts the request of a job that failed, was cancelled or is parked once more; answers with the new job. 409
    where there is nothing to try again.
    """
    return Job.of(services.jobs.get(caller.tenant, services.plans.retry(caller, job_id).job_id))


@router.get(
    "/{job_id}/events",
    summary="Follow a job",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events: `progress` while the search runs, `provisional` with the job when "
            "there is a better plan so far, then one `done` with the job.",
            "content": {
                "text/event-stream": {
                    "example": 'id: 1\nevent: progress\ndata: {"sequence":1,"incumbent_ns":812000000}\n\n'
                }
            },
        },
        **PROBLEM_RESPONSES,
    },
)
async def follow_job(
    caller: Reader, services: ServicesDep, job_id: JobId, last_event_id: LastEventId = "0"
) -> StreamingResponse:
    """Progress from the beginning (or from after `Last-Event-ID`) until the job ends."""
    await run_in_threadpool(services.jobs.get, caller.tenant, job_id)
    return StreamingResponse(
        _stream(services, caller.tenant, job_id, int(last_event_id)),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _stream(services: Services, tenant: str, job_id: str, after: int) -> AsyncIterator[str]:
    async for item in services.jobs.follow(tenant, job_id, after, silence_s=SILENCE_S):
        match item:
            case JobEventRow():
                progress = JobProgress(sequence=item.sequence, at=timestamp(item.at_us), **item.data)
                yield f"id: {item.sequence}\nevent: progress\ndata: {progress.model_dump_json()}\n\n"
            case JobView():
                event = "done" if item.is_final else "provisional"
                yield f"event: {event}\ndata: {Job.of(item).model_dump_json()}\n\n"
            case None:
                yield ": still here\n\n"
