"""Add the pages to the application of the API."""

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from api.dashboard import static_files
from api.dashboard.errors import wants_page
from api.dashboard.pages import (
    clusters,
    compare,
    jobs,
    lineages,
    login,
    overview,
    plan,
    plans,
    regenerations,
    what_if,
)
from api.dashboard.route import answer
from api.http.problems import problem_of

ROUTERS = (
    static_files.router,
    login.router,
    overview.router,
    plans.router,
    plan.router,
    compare.router,
    what_if.router,
    lineages.router,
    clusters.router,
    regenerations.router,
    jobs.router,
)


def add_dashboard(app: FastAPI) -> None:
    """Serve pages beside `/v1`; they are not in the OpenAPI document."""
    for router in ROUTERS:
        app.include_router(router)

    @app.exception_handler(HTTPException)
    async def _http_error(request: Request, error: HTTPException) -> Response:
        """A page where a browser asks for an address that is not there."""

        async def fail(_request: Request) -> Response:
            raise error

        if wants_page(request):
            return await answer(request, fail)
        return await run_in_threadpool(problem_of, request, error)
