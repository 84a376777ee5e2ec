"""What a job looks like from outside."""

from typing import Literal

from pydantic import BaseModel

from api.http.dependencies import EXAMPLE_HASH, timestamp
from api.http.problems import Problem, error_response, failure_of
from api.service.jobs import JobView
from api.service.planner_process import Progress
from profiles_db.tables import JobPriority, JobState

_PRIORITY_NAMES: dict[JobPriority, Literal["launcher", "batch", "regeneration"]] = {
    JobPriority.LAUNCHER: "launcher",
    JobPriority.BATCH: "batch",
    JobPriority.REGENERATION: "regeneration",
}


class JobProgress(Progress):
    """How far a search is: the best step time found so far and the proven bound."""

    sequence: int
    at: str


class Job(BaseModel):
    """An attempt to solve a request."""

    model_config = {
        "json_schema_extra": {
            "examples": [
                {
                    "job_id": f"default:{EXAMPLE_HASH}:0.1.0:1",
                    "state": "running",
                    "priority": "launcher",
                    "request_hash": EXAMPLE_HASH,
                    "model_name": "llama-70b",
                    "cluster_name": "two nodes of eight",
                    "planner_version": "0.1.0",
                    "attempt": 1,
                    "created_at": "2026-03-02T10:00:00.000+00:00",
                    "started_at": "2026-03-02T10:00:00.120+00:00",
                    "finished_at": None,
                    "progress": {
                        "sequence": 4,
                        "at": "2026-03-02T10:00:03.500+00:00",
                        "incumbent_ns": 812000000,
                        "bound_ns": 790000000,
                        "elapsed_s": 3.3,
                        "message": "mesh 8 x 16",
                    },
                    "plan_id": None,
                    "provisional_plan_id": None,
                    "problem": None,
                    "links": {"self": "/v1/jobs/...", "events": "/v1/jobs/.../events"},
                }
            ]
        }
    }

    job_id: str
    state: JobState
    priority: Literal["launcher", "batch", "regeneration"]
    request_hash: str
    model_name: str
    cluster_name: str
    planner_version: str
    attempt: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    progress: JobProgress | None
    plan_id: str | None
    provisional_plan_id: str | None
    """The best plan so far, until the proven one replaces it; a cancelled job keeps it."""
    problem: Problem | None
    links: dict[str, str]

    @classmethod
    def of(cls, view: JobView) -> "Job":
        """Show a job."""
        row = view.job
        links = {"self": job_link(row.job_id), "events": f"{job_link(row.job_id)}/events"}
        if row.plan_id is not None:
            links["plan"] = f"/v1/plans/{row.plan_id}"
        if view.provisional_plan_id is not None:
            links["provisional_plan"] = f"/v1/plans/{view.provisional_plan_id}"
        return cls(
            job_id=row.job_id,
            state=JobState(row.state),
            priority=_PRIORITY_NAMES[JobPriority(row.priority)],
            request_hash=row.request_hash,
            model_name=view.model_name,
            cluster_name=view.cluster_name,
            planner_version=row.planner_version,
            attempt=row.attempt,
            created_at=timestamp(row.created_at_us),
            started_at=timestamp(row.started_at_us) if row.started_at_us is not None else None,
            finished_at=timestamp(row.finished_at_us) if row.finished_at_us is not None else None,
            progress=progress_of(view),
            plan_id=row.plan_id,
            provisional_plan_id=view.provisional_plan_id,
            problem=problem_of(view),
            links=links,
        )


class JobPage(BaseModel):
    """Jobs, newest first; `next` is the cursor of the next page."""

    items: list[Job]
    next: str | None


def progress_of(view: JobView) -> JobProgress | None:
    """The newest progress of a job."""
    event = view.progress
    if event is None:
        return None
    return JobProgress(sequence=event.sequence, at=timestamp(event.at_us), **event.data)


def problem_of(view: JobView) -> Problem | None:
    """Why a job failed."""
    if view.job.problem is None:
        return None
    return Problem.model_validate_json(bytes(error_response(failure_of(view.job.problem)).body))


def job_link(job_id: str) -> str:
    """Path of a job."""
    return f"/v1/jobs/{job_id}"
