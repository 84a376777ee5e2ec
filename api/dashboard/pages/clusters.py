"""`/clusters`: what each one has, drawn; what a change would touch, and the change itself."""

from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from api.dashboard.cluster_form import revision_of
from api.dashboard.dependencies import AdminViewer, Form, Viewer, page_router
from api.dashboard.rendering import address, in_path, page
from api.dashboard.topology import drawing_of
from api.http.dependencies import ServicesDep
from api.http.regenerations.views import (
    ClusterRevision,
    CurrentClusterView,
    Regeneration,
    RegenerationPreview,
)
from api.service.callers import Caller, Scope
from api.service.regenerations.clusters import Preview
from planner.catalog.devices import device_names
from planner.catalog.links import link_names

router = page_router()

Cursor = Annotated[str, Query(max_length=500)]
ClusterName = Annotated[str, Path(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")]


@router.get("/clusters")
def show_clusters(viewer: Viewer, request: Request, services: ServicesDep, cursor: Cursor = "") -> Response:
    """A page of clusters, by name."""
    found = services.clusters.currents(viewer.tenant, after=cursor or None, limit=50)
    return page(
        request,
        "clusters.html",
        clusters=[CurrentClusterView.of(one) for one in found.items],
        next=found.next,
        cursor=cursor,
    )


@router.get("/clusters/{name:path}")
def show_cluster(
    viewer: Viewer, request: Request, services: ServicesDep, name: ClusterName, cursor: Cursor = ""
) -> Response:
    """One cluster: topology, revisions, regenerations, and the form to change it."""
    return _page(viewer, request, services, name, cursor=cursor)


@router.post("/clusters/{name:path}/preview")
async def preview(
    viewer: AdminViewer, request: Request, form: Form, services: ServicesDep, name: ClusterName
) -> Response:
    """What a change would touch; nothing is changed."""
    body = revision_of(form, dry_run=True)
    found = await run_in_threadpool(services.clusters.revise, viewer, name, body)
    assert isinstance(found, Preview)
    shown = RegenerationPreview.of(found)
    return await run_in_threadpool(_page, viewer, request, services, name, preview=shown, form=form)


@router.post("/clusters/{name:path}/changes")
async def change(viewer: AdminViewer, form: Form, services: ServicesDep, name: ClusterName) -> Response:
    """Change the cluster, and show how its plans are made again."""
    started = await run_in_threadpool(services.clusters.revise, viewer, name, revision_of(form))
    assert not isinstance(started, Preview)
    return RedirectResponse(address(f"/regenerations/{started.row.regeneration_id}", notice="started"), 303)


def _page(
    viewer: Caller,
    request: Request,
    services: ServicesDep,
    name: str,
    *,
    cursor: str = "",
    preview: RegenerationPreview | None = None,
    form: dict[str, Any] | None = None,
) -> Response:
    tenant = viewer.tenant
    current = services.clusters.current(tenant, name)
    revisions = services.clusters.revisions(tenant, name, cursor=cursor or None, limit=20)
    regenerations = services.regenerations.page(tenant, cluster=name, cursor=None, limit=5)
    return page(
        request,
        "cluster.html",
        cluster=CurrentClusterView.of(current),
        description=current.cluster,
        drawing=drawing_of(current.cluster),
        path=f"/clusters/{in_path(name)}",
        revisions=[ClusterRevision.of(row) for row in revisions.items],
        next=revisions.next,
        cursor=cursor,
        regenerations=[Regeneration.of(view) for view in regenerations.items],
        preview=preview,
        form=form or {},
        links=link_names(),
        devices=device_names(),
        may_change=Scope.ADMIN in viewer.scopes,
    )
