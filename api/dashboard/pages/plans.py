"""`/plans`: search, filter and sort; the address holds what is shown."""

from typing import Annotated, Literal

from fastapi import Query, Request, Response

from api.dashboard.dependencies import Viewer, page_router
from api.dashboard.rendering import page
from api.http.dependencies import ServicesDep
from api.http.plans.endpoints import PlanSummary
from api.service.plans import PlanFilter
from profiles_db.tables import DocumentKind

router = page_router()

Text = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")]
Cursor = Annotated[str, Query(max_length=500)]
MAX_CHOICES = 200
COLUMNS = (
    ("", "Plan", ""),
    ("", "Outcome", ""),
    ("ranks", "Ranks", "desc"),
    ("step_time", "Step time", "asc"),
    ("memory", "Peak memory", "asc"),
    ("gap", "Gap", "asc"),
    ("", "Model", ""),
    ("", "Cluster", ""),
    ("created", "Made", "desc"),
)
"""What can be sorted by, the words, and which way comes first."""


@router.get("/plans")
def show_plans(
    viewer: Viewer,
    request: Request,
    services: ServicesDep,
    name: Text = "",
    model_name: Text = "",
    cluster_name: Text = "",
    outcome: Literal["", "feasible", "infeasible"] = "",
    sort: Literal["created", "step_time", "memory", "gap", "ranks"] = "created",
    order: Literal["asc", "desc"] = "desc",
    cursor: Cursor = "",
) -> Response:
    """A page of plans."""
    chosen = PlanFilter(
        name=name or None,
        model_name=model_name or None,
        cluster_name=cluster_name or None,
        outcome=outcome or None,
        sort=sort,
        is_descending=order == "desc",
    )
    found = services.plans.page(viewer.tenant, chosen, cursor=cursor or None, limit=50)
    is_default = (sort, order) == ("created", "desc")
    return page(
        request,
        "plans.html",
        plans=[PlanSummary.of(plan) for plan in found.items],
        next=found.next,
        state={
            "name": name,
            "model_name": model_name,
            "cluster_name": cluster_name,
            "outcome": outcome,
            "sort": None if is_default else sort,
            "order": None if is_default else order,
            "cursor": cursor,
        },
        sort=sort,
        order=order,
        columns=COLUMNS,
        models=_choices(services, viewer.tenant, DocumentKind.MODEL, model_name),
        clusters=_choices(services, viewer.tenant, DocumentKind.CLUSTER, cluster_name),
    )


def _choices(services: ServicesDep, tenant: str, kind: DocumentKind, chosen: str) -> list[str]:
    names = services.documents.names(tenant, kind, limit=MAX_CHOICES)
    return names if not chosen or chosen in names else [chosen, *names]
