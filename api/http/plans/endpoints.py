"""`/v1/plans`: ask for a plan, get one, list them."""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, WithJsonSchema
from starlette.concurrency import run_in_threadpool

from api.http.body import with_body
from api.http.dependencies import (
    SHA256_PATTERN,
    ContentHash,
    CursorParameter,
    JsonBody,
    Limit,
    Planner,
    Reader,
    ServicesDep,
    timestamp,
)
from api.http.etags import tagged
from api.http.examples import REFERENCES, REQUEST
from api.http.jobs.views import Job, job_link
from api.http.openapi import NOT_CHANGED, PROBLEM_RESPONSES, document_body, document_response
from api.http.problems import failure_of
from api.http.tracing import note
from api.service.jobs import JobView
from api.service.plans import ListedPlan, PlanFilter
from api.service.services import Services
from profiles_db.tables import JobPriority

router = APIRouter(prefix="/v1/plans", tags=["plans"])

Wait = Annotated[
    float,
    Query(
        ge=0, le=600, allow_inf_nan=False, description="Seconds to wait for the plan before the answer is a job."
    ),
]
Priority = Annotated[
    Literal["launcher", "batch"],
    Query(description="Who waits: a job that is about to start, or somebody who looks later."),
]
HashFilter = Annotated[str | None, Query(pattern=SHA256_PATTERN, description="Only plans of this document.")]

NameFilter = Annotated[
    str | None, Query(min_length=1, max_length=200, pattern=r"^[^\x00]*$", description="Only these.")
]
Sort = Annotated[
    Literal["created", "step_time", "memory", "gap", "ranks"],
    Query(description="What the order follows; plans without a value come last."),
]
Order = Annotated[Literal["asc", "desc"], Query(description="Lowest or highest first.")]


class PlanSummary(BaseModel):
    """A plan in a list."""

    plan_id: str
    name: str
    outcome: Literal["feasible", "infeasible"]
    world_size: int
    step_time_ns: int | None
    reserved_bytes: int | None
    gap: float | None
    model: str
    model_name: str
    cluster: str
    cluster_name: str
    planner_version: str
    created_at: str
    links: dict[str, str]

    @classmethod
    def of(cls, listed: ListedPlan) -> "PlanSummary":
        """Show a plan."""
        row = listed.row
        return cls(
            plan_id=row.plan_id,
            name=row.name,
            outcome="feasible" if row.outcome == "feasible" else "infeasible",
            world_size=row.world_size,
            step_time_ns=row.step_time_ns,
            reserved_bytes=row.reserved_bytes,
            gap=row.gap,
            model=row.model_hash,
            model_name=listed.model_name,
            cluster=row.cluster_hash,
            cluster_name=listed.cluster_name,
            planner_version=row.planner_version,
            created_at=timestamp(row.created_at_us),
            links={
                "self": f"/v1/plans/{row.plan_id}",
                "model": f"/v1/models/{row.model_hash}",
                "cluster": f"/v1/clusters/{row.cluster_hash}",
            },
        )


class Accepted(Job):
    """A job that works on a plan, and the best plan so far: usable, and checked like any other, but not proven."""

    provisional_plan: Annotated[
        dict[str, Any] | None, WithJsonSchema({"anyOf": [{"$ref": "#/components/schemas/Plan"}, {"type": "null"}]})
    ]


class PlanPage(BaseModel):
    """Plans in the order that was asked for; `next` is the cursor of the next page."""

    items: list[PlanSummary]
    next: str | None


@router.post(
    "",
    summary="Ask for a plan",
    response_class=Response,
    responses={
        200: document_response("Plan", "The plan. It may be infeasible: that is a result, with its reason."),
        202: {"model": Accepted, "description": "Not ready within `wait`: the job, and the best plan so far."},
        **PROBLEM_RESPONSES,
    },
    openapi_extra=document_body(
        "PlanRequest", "RequestReferences", examples={"by reference": REFERENCES, "inline": REQUEST}
    ),
)
async def create_plan(
    caller: Planner,
    services: ServicesDep,
    request: Request,
    body: JsonBody,
    wait: Wait = 30.0,
    priority: Priority = "launcher",
) -> Response:
    """Model, cluster, workload and profile in, one plan out. Model, cluster and profile may be given as the
    `sha256:` hash of a stored document. The same request gives the same plan; equal requests share one search.
    Who cannot wait for the proof gets the best plan so far with the job: its certificate says `provisional`.
    """
    submitted = await with_body(request, services.plans.submit, caller, body, JobPriority[priority.upper()])
    note(job_id=submitted.job_id)
    view = await services.jobs.wait(caller.tenant, submitted.job_id, wait)
    if view.job.problem is not None:
        raise failure_of(view.job.problem)
    if view.job.plan_id is None:
        return await run_in_threadpool(_accepted, services, view)
    plan_id = view.job.plan_id
    note(plan_id=plan_id)
    response = await run_in_threadpool(
        tagged, request, services.plans.tag(plan_id), lambda: services.plans.get(caller.tenant, plan_id)
    )
    response.headers["Content-Location"] = f"/v1/plans/{plan_id}"
    return response


def _accepted(services: Services, view: JobView) -> Response:
    headers = {"Location": job_link(view.job.job_id), "Retry-After": "1"}
    provisional = None
    if view.provisional_plan_id is not None:
        provisional = json.loads(services.plans.get(view.job.tenant, view.provisional_plan_id))
        services.metrics.provisional_answers.inc()
    job = Job.of(view).model_dump(mode="json")
    return JSONResponse({**job, "provisional_plan": provisional}, 202, headers=headers)


@router.get("", summary="List plans", response_model=PlanPage, responses=PROBLEM_RESPONSES)
def list_plans(
    caller: Reader,
    services: ServicesDep,
    name: NameFilter = None,
    model: HashFilter = None,
    model_name: NameFilter = None,
    cluster: HashFilter = None,
    cluster_name: NameFilter = None,
    outcome: Literal["feasible", "infeasible"] | None = None,
    sort: Sort = "created",
    order: Order = "desc",
    cursor: CursorParameter = None,
    limit: Limit = 50,
) -> Any:  # noqa: ANN401
    """Newest first unless another order is asked for; `next` of a page is the `cursor` of the one after it. `name`
    is any part of a plan's name; names of models and clusters are whole ones.
    """
    chosen = PlanFilter(
        name=name,
        model=model,
        model_name=model_name,
        cluster=cluster,
        cluster_name=cluster_name,
        outcome=outcome,
        sort=sort,
        is_descending=order == "desc",
    )
    page = services.plans.page(caller.tenant, chosen, cursor=cursor, limit=limit)
    return PlanPage(items=[PlanSummary.of(plan) for plan in page.items], next=page.next)


@router.get(
    "/{plan_id}",
    summary="Get a plan",
    response_class=Response,
    responses={200: document_response("Plan"), 304: NOT_CHANGED, **PROBLEM_RESPONSES},
)
def get_plan(caller: Reader, services: ServicesDep, request: Request, plan_id: ContentHash) -> Response:
    """Body and envelope; the ETag is the identity of the body, and of the key that signs."""
    named = (caller.tenant, plan_id)
    return tagged(
        request,
        services.plans.tag(plan_id),
        lambda: services.plans.get(*named),
        lambda: services.plans.require(*named),
    )
