"""`/healthz`, `/readyz`, `/metrics`."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from api.http.dependencies import Reader, ServicesDep
from api.http.openapi import PROBLEM_RESPONSES
from api.http.problems import problem_response
from planner import __version__
from profiles_db.engine import DatabaseUnavailable

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The server runs."""

    status: str = "ok"
    planner_version: str = __version__


@router.get("/healthz", summary="Is the server alive", response_model=Health)
async def healthz() -> Health:
    """Answers as long as the process can."""
    return Health()


class Readiness(Health):
    """The server answers, and so many processes search. Without any, known plans are served and requests wait."""

    workers: int
    queued: int


@router.get("/readyz", summary="Is the server ready", response_model=Readiness, responses=PROBLEM_RESPONSES)
def readyz(services: ServicesDep) -> Readiness | Response:
    """503 while the database cannot be reached, or this server cannot hand jobs to the queue."""
    try:
        services.database.check()
        overview = services.jobs.overview()
    except (DatabaseUnavailable, SQLAlchemyError):
        return problem_response(503, "database_unavailable", "the database cannot be reached")
    if (why := services.runner.why_not_ready()) is not None:
        return problem_response(503, "not_running", why)
    return Readiness(workers=len(overview.workers), queued=sum(overview.queued_by_priority.values()))


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}}, "description": "Prometheus text format."},
        **PROBLEM_RESPONSES,
    },
)
def metrics(_caller: Reader, services: ServicesDep) -> Response:
    """Counters and gauges of this process, and jobs by state in the database."""
    services.metrics.show(services.jobs.overview())
    services.metrics.show_regenerations(*services.regenerations.overview())
    services.metrics.drifting_plans.set(services.measurements.num_drifting())
    return Response(generate_latest(services.metrics.registry), media_type=CONTENT_TYPE_LATEST)
