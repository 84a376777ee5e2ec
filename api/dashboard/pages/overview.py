"""`/`: what goes on, at a glance."""

from fastapi import Request, Response

from api.dashboard.dependencies import Viewer, page_router
from api.dashboard.rendering import page
from api.http.dependencies import ServicesDep

router = page_router()


@router.get("/")
def show_overview(_viewer: Viewer, request: Request, services: ServicesDep) -> Response:
    """Plans by outcome, jobs by state, searches under way."""
    return page(request, "overview.html")
