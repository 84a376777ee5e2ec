"""`/v1/clusters/{name}/revisions` and `/v1/regenerations`."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from api.http.body import with_body
from api.http.dependencies import Admin, CursorParameter, JsonBody, Limit, Reader, ServicesDep
from api.http.openapi import PROBLEM_RESPONSES, document_body
from api.http.regenerations.views import (
    ClusterRevision,
    ClusterRevisionPage,
    CurrentClusterPage,
    CurrentClusterView,
    Regeneration,
    RegenerationItem,
    RegenerationItemPage,
    RegenerationPage,
    RegenerationPreview,
)
from api.service.regenerations.clusters import Preview
from profiles_db.tables import Review, Verdict

router = APIRouter(prefix="/v1", tags=["regenerations"])

_NAME = r"^[^\x00-\x1f\x7f]{1,200}$"
_REVISIONS = "/clusters/{name:path}/revisions"
"""Names of clusters may have slashes, as they are or as %2F, which servers and proxies take for the same."""
ClusterName = Annotated[str, Path(pattern=_NAME, description="Name of a cluster.", examples=["two nodes of eight"])]
ClusterFilter = Annotated[str | None, Query(alias="cluster", pattern=_NAME, description="Only of this cluster.")]
NameCursor = Annotated[str | None, Query(alias="cursor", pattern=_NAME, description="`next` of the page before.")]
RegenerationId = Annotated[str, Path(pattern=r"^reg_[0-9a-f]{24}$", examples=["reg_5f0c1d2e3a4b5c6d7e8f9a0b"])]
Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of an item.")]
LOST: dict[str, Any] = {
    "changes": [{"change": "nodes_lost", "num_nodes": 1}],
    "why": "rack 7 lost power",
    "policy": {"activate_within_percent": 5.0},
}
DEGRADED: dict[str, Any] = {
    "changes": [{"change": "link_degraded", "link": "inter_node", "share": 0.5}],
    "dry_run": True,
}


@router.post(
    _REVISIONS,
    summary="Change a cluster and make its plans again",
    operation_id="revise_cluster",
    status_code=202,
    response_model=Regeneration,
    responses={
        200: {"model": RegenerationPreview, "description": "A dry run: what would be made again."},
        **PROBLEM_RESPONSES,
    },
    openapi_extra=document_body("NewClusterRevision", examples={"nodes lost": LOST, "dry run": DEGRADED}),
)
async def revise_cluster(
    caller: Admin, services: ServicesDep, request: Request, name: ClusterName, body: JsonBody
) -> Response:
    """Nodes lost or added, other memory, links degraded or replaced, other devices, or a whole description. Every
    plan that rests on the cluster is searched again, behind what launchers ask for. A new revision becomes active
    where the policy allows it, and else waits for a person. Nothing is overwritten.
    """
    found = await with_body(request, services.clusters.revise, caller, name, body)
    if isinstance(found, Preview):
        return JSONResponse(RegenerationPreview.of(found).model_dump(mode="json"))
    shown = Regeneration.of(found)
    return JSONResponse(shown.model_dump(mode="json"), 202, headers={"Location": shown.links["self"]})


@router.get(
    "/current-clusters",
    summary="List clusters as they are now",
    response_model=CurrentClusterPage,
    responses=PROBLEM_RESPONSES,
)
def list_current_clusters(
    caller: Reader, services: ServicesDep, cursor: NameCursor = None, limit: Limit = 50
) -> Any:  # noqa: ANN401
    """By name, each once: the description that holds now, what it has, and how many plans rest on it."""
    page = services.clusters.currents(caller.tenant, after=cursor, limit=limit)
    return CurrentClusterPage(items=[CurrentClusterView.of(found) for found in page.items], next=page.next)


@router.get(
    "/clusters/{name:path}/current",
    summary="Get a cluster as it is now",
    response_model=CurrentClusterView,
    responses=PROBLEM_RESPONSES,
)
def get_current_cluster(caller: Reader, services: ServicesDep, name: ClusterName) -> Any:  # noqa: ANN401
    """The description that holds now, what it has, and how many plans rest on it."""
    return CurrentClusterView.of(services.clusters.current(caller.tenant, name))


@router.get(
    _REVISIONS,
    summary="List revisions of a cluster",
    response_model=ClusterRevisionPage,
    responses=PROBLEM_RESPONSES,
)
def list_cluster_revisions(
    caller: Reader, services: ServicesDep, name: ClusterName, cursor: CursorParameter = None, limit: Limit = 50
) -> Any:  # noqa: ANN401
    """Newest first, each with what changed; empty for a cluster that was never changed."""
    page = services.clusters.revisions(caller.tenant, name, cursor=cursor, limit=limit)
    return ClusterRevisionPage(items=[ClusterRevision.of(row) for row in page.items], next=page.next)


@router.get(
    "/regenerations", summary="List regenerations", response_model=RegenerationPage, responses=PROBLEM_RESPONSES
)
def list_regenerations(
    caller: Reader,
    services: ServicesDep,
    cluster: ClusterFilter = None,
    cursor: CursorParameter = None,
    limit: Limit = 50,
) -> Any:  # noqa: ANN401
    """Newest first, each with its progress."""
    page = services.regenerations.page(caller.tenant, cluster=cluster, cursor=cursor, limit=limit)
    return RegenerationPage(items=[Regeneration.of(view) for view in page.items], next=page.next)


@router.get(
    "/regenerations/{regeneration_id}",
    summary="Get a regeneration",
    response_model=Regeneration,
    responses=PROBLEM_RESPONSES,
)
def get_regeneration(caller: Reader, services: ServicesDep, regeneration_id: RegenerationId) -> Any:  # noqa: ANN401
    """How many plans wait, are done, are better, worse or infeasible, and wait for a person."""
    return Regeneration.of(services.regenerations.get(caller.tenant, regeneration_id))


@router.post(
    "/regenerations/{regeneration_id}/cancel",
    summary="Cancel a regeneration",
    operation_id="cancel_regeneration",
    response_model=Regeneration,
    responses=PROBLEM_RESPONSES,
)
def cancel_regeneration(caller: Admin, services: ServicesDep, regeneration_id: RegenerationId) -> Any:  # noqa: ANN401
    """Nothing more is made again; what is done stays."""
    return Regeneration.of(services.regenerations.cancel(caller.tenant, regeneration_id))


@router.get(
    "/regenerations/{regeneration_id}/items",
    summary="List what is made again",
    response_model=RegenerationItemPage,
    responses=PROBLEM_RESPONSES,
)
def list_items(
    caller: Reader,
    services: ServicesDep,
    regeneration_id: RegenerationId,
    verdict: Verdict | None = None,
    review: Review | None = None,
    cursor: CursorParameter = None,
    limit: Limit = 50,
) -> Any:  # noqa: ANN401
    """Each old plan with the new one, the verdict and the reasons; `review=waiting` is a person's list of work."""
    page = services.regenerations.items(
        caller.tenant, regeneration_id, verdict=verdict, review=review, cursor=cursor, limit=limit
    )
    return RegenerationItemPage(items=[RegenerationItem.of(view) for view in page.items], next=page.next)


@router.post(
    "/regenerations/{regeneration_id}/items/{number}/{decision}",
    summary="Accept or reject a new revision",
    operation_id="review_item",
    response_model=RegenerationItem,
    responses=PROBLEM_RESPONSES,
)
def review_item(
    caller: Admin,
    services: ServicesDep,
    regeneration_id: RegenerationId,
    number: Number,
    decision: Literal["accept", "reject"],
) -> Any:  # noqa: ANN401
    """Accepting makes the revision active. 409 where the lineage has moved on since."""
    return RegenerationItem.of(services.regenerations.review(caller, regeneration_id, number, decision))
