"""`/healthz`, `/readyz`, `/metrics`."""

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from api.http.dependencies import Reader, ServicesDep
from api.http.openapi import PROBLEM_RESPONSES
from api.http.problems import problem_response
from planner import __version__
from profiles_db.engine import DatabaseUnavailable
from profiles_db.tables import JobState

router = APIRouter(tags=["health"])


class Health(BaseModel):
    """The server runs."""

    status: str = "ok"
    planner_version: str = __version__


@router.get("/healthz", summary="Is the server alive", response_model=Health)
async def healthz() -> Health:
    """Answers as long as the process can."""
    return Health()


@router.get("/readyz", summary="Is the server ready", response_model=Health, responses=PROBLEM_RESPONSES)
def readyz(services: ServicesDep) -> Health | Response:
    """503 while the database cannot be reached or jobs are not worked on."""
    try:
        services.database.check()
    except DatabaseUnavailable:
        return problem_response(503, "database_unavailable", "the database cannot be reached")
    if not services.runner.is_running:
        return problem_response(503, "not_running", "jobs are not worked on: the server starts or stops")
    return Health()


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
    counts = services.jobs.count_by_state()
    for state in JobState:
        services.metrics.jobs.labels(state.value).set(counts.get(state, 0))
    return Response(generate_latest(services.metrics.registry), media_type=CONTENT_TYPE_LATEST)
