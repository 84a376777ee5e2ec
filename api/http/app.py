"""The ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from api.dashboard.mount import add_dashboard
from api.http.body import BODIES_AT_ONCE, BodyLimit
from api.http.documents.endpoints import document_router
from api.http.health.endpoints import router as health_router
from api.http.identity.endpoints import router as identity_router
from api.http.jobs.endpoints import router as jobs_router
from api.http.keys.endpoints import router as keys_router
from api.http.lineages.endpoints import router as lineages_router
from api.http.measurements.endpoints import router as measurements_router
from api.http.openapi import describe
from api.http.overview.endpoints import router as overview_router
from api.http.plans.endpoints import router as plans_router
from api.http.problems import add_problem_handlers
from api.http.regenerations.endpoints import router as regenerations_router
from api.http.requests import HostCheck, RequestContext
from api.http.simulations.endpoints import router as simulations_router
from api.http.tracing import TELEMETRY
from api.service.services import Services
from api.settings import Settings
from planner import __version__
from profiles_db.tables import DocumentKind

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


def create_app(settings: Settings) -> FastAPI:
    """Build the application; its lifespan takes the database, migrates it and runs jobs."""
    services = Services(settings, has_worker=settings.embedded_worker)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(services.start)
        try:
            yield
        finally:
            await run_in_threadpool(services.stop)

    app = FastAPI(
        title="Shardwright",
        version=__version__,
        description="Plans for FSDP2 training: every sharding knob searched together, each answer with its proof.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=TELEMETRY,
    )
    app.state.services = services
    app.state.body_limiter = CapacityLimiter(BODIES_AT_ONCE)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    add_problem_handlers(app)
    for kind in DocumentKind:
        app.include_router(document_router(kind))
    for router in (
        plans_router,
        simulations_router,
        measurements_router,
        lineages_router,
        regenerations_router,
        jobs_router,
        keys_router,
        identity_router,
        overview_router,
        health_router,
    ):
        app.include_router(router)
    add_dashboard(app)
    app.add_middleware(BodyLimit, max_body_bytes=settings.max_body_bytes)
    if settings.is_local:
        app.add_middleware(HostCheck, hosts=LOOPBACK_HOSTS)
    app.add_middleware(RequestContext, metrics=services.metrics)
    return app
