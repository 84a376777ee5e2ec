"""`/regenerations`: plans that are made again, live, and what waits for a person."""

from typing import Annotated, Literal

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from api.dashboard.dependencies import AdminViewer, Viewer, page_router
from api.dashboard.rendering import address, page
from api.http.dependencies import ServicesDep
from api.http.regenerations.endpoints import Number, RegenerationId
from api.http.regenerations.views import Regeneration, RegenerationItem
from api.service.callers import Scope
from profiles_db.tables import RegenerationState, Review, Verdict

router = page_router()

Cursor = Annotated[str, Query(max_length=500)]
ClusterName = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")]


@router.get("/regenerations")
def show_regenerations(
    viewer: Viewer, request: Request, services: ServicesDep, cluster: ClusterName = "", cursor: Cursor = ""
) -> Response:
    """A page of regenerations, newest first, that refreshes itself while one goes on."""
    found = services.regenerations.page(viewer.tenant, cluster=cluster or None, cursor=cursor or None, limit=50)
    shown = [Regeneration.of(view) for view in found.items]
    return page(
        request,
        "regenerations.html",
        regenerations=shown,
        next=found.next,
        is_live=any(one.state is RegenerationState.RUNNING for one in shown),
        state={"cluster": cluster, "cursor": cursor},
    )


@router.get("/regenerations/{regeneration_id}")
def show_regeneration(
    viewer: Viewer,
    request: Request,
    services: ServicesDep,
    regeneration_id: RegenerationId,
    verdict: Verdict | Literal[""] = "",
    review: Review | Literal[""] = "",
    cursor: Cursor = "",
) -> Response:
    """One regeneration, live, with its items."""
    shown = Regeneration.of(services.regenerations.get(viewer.tenant, regeneration_id))
    items = services.regenerations.items(
        viewer.tenant,
        regeneration_id,
        verdict=verdict or None,
        review=review or None,
        cursor=cursor or None,
        limit=50,
    )
    return page(
        request,
        "regeneration.html",
        regeneration=shown,
        items=[RegenerationItem.of(row) for row in items.items],
        next=items.next,
        is_live=shown.state is RegenerationState.RUNNING,
        verdicts=[verdict.value for verdict in Verdict],
        reviews=[review.value for review in Review],
        state={"verdict": verdict, "review": review, "cursor": cursor},
        may_decide=Scope.ADMIN in viewer.scopes,
    )


@router.post("/regenerations/{regeneration_id}/cancel")
async def cancel(viewer: AdminViewer, services: ServicesDep, regeneration_id: RegenerationId) -> Response:
    """Make nothing more again."""
    await run_in_threadpool(services.regenerations.cancel, viewer.tenant, regeneration_id)
    return RedirectResponse(address(f"/regenerations/{regeneration_id}", notice="cancelled"), 303)


@router.post("/regenerations/{regeneration_id}/items/{number}/{decision}")
async def review_item(
    viewer: AdminViewer,
    services: ServicesDep,
    regeneration_id: RegenerationId,
    number: Number,
    decision: Literal["accept", "reject"],
) -> Response:
    """Accept or reject a new revision."""
    await run_in_threadpool(services.regenerations.review, viewer, regeneration_id, number, decision)
    return RedirectResponse(address(f"/regenerations/{regeneration_id}", notice=f"{decision}ed"), 303)
