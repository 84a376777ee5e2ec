"""`/v1/simulations` and what is worked out from a plan: its timeline, memory, streams, difference to another."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from api.http.body import with_body
from api.http.dependencies import EXAMPLE_HASH, SHA256_PATTERN, ContentHash, JsonBody, Reader, ServicesDep
from api.http.etags import tagged
from api.http.openapi import NOT_CHANGED, PROBLEM_RESPONSES, document_body
from api.http.simulations.views import MemoryOverStep, PlansCompared, Simulation, StreamsOverStep
from planner import __version__ as PLANNER_VERSION  # noqa: N812 - a constant

router = APIRouter(tags=["simulations"])

CHANGED: dict[str, Any] = {"plan": EXAMPLE_HASH, "change": {"sequence": 8192, "forbidden": ["prefetch"]}}
Nanosecond = Annotated[int, Query(ge=0, le=2**53 - 1)]


@router.post(
    "/v1/simulations",
    summary="Predict a configuration",
    operation_id="simulate",
    response_model=Simulation,
    responses=PROBLEM_RESPONSES,
    openapi_extra=document_body("NewSimulation", examples={"a plan under a change": CHANGED}),
)
async def simulate(caller: Reader, services: ServicesDep, request: Request, body: JsonBody) -> Any:  # noqa: ANN401
    """Time and memory of decisions that you write, or of a plan's under other sizes, ranks, memory or without some
    knobs. Nothing is searched or stored. Where the decisions cannot be carried over, the problem
    `decisions_do_not_fit` says why.
    """
    return Simulation.of(await with_body(request, services.simulations.simulate, caller.tenant, body))


@router.get(
    "/v1/plans/{plan_id}/timeline",
    summary="Get the step as a trace",
    response_class=Response,
    responses={
        200: {
            "description": "Chrome trace JSON: open it in https://ui.perfetto.dev.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        304: NOT_CHANGED,
        **PROBLEM_RESPONSES,
    },
)
def get_timeline(caller: Reader, services: ServicesDep, request: Request, plan_id: ContentHash) -> Response:
    """The predicted step: streams, CPU, stalls, memory. Micro-batches that are alike are in it once."""
    named = (caller.tenant, plan_id)
    return tagged(
        request,
        _tag(plan_id),
        lambda: services.simulations.trace(*named),
        lambda: services.plans.require(*named),
    )


@router.get(
    "/v1/plans/{plan_id}/memory",
    summary="Get memory over the step",
    response_model=MemoryOverStep,
    responses={304: NOT_CHANGED, **PROBLEM_RESPONSES},
)
def get_memory(
    caller: Reader,
    services: ServicesDep,
    request: Request,
    plan_id: ContentHash,
    points: Annotated[int, Query(ge=2, le=20_000, description="About so many points; no peak is lost.")] = 600,
) -> Response:
    """Allocated bytes of one rank by category at the allocation points of the predicted step."""
    step = services.simulations.step(caller.tenant, plan_id)
    return _json(request, MemoryOverStep.of(step, points), plan_id)


@router.get(
    "/v1/plans/{plan_id}/streams",
    summary="Get the streams over the step",
    response_model=StreamsOverStep,
    responses={304: NOT_CHANGED, **PROBLEM_RESPONSES},
)
def get_streams(
    caller: Reader,
    services: ServicesDep,
    request: Request,
    plan_id: ContentHash,
    start_ns: Nanosecond = 0,
    end_ns: Annotated[int | None, Query(ge=1, le=2**53 - 1, description="The end of the step if left out.")] = None,
    pieces: Annotated[
        int, Query(ge=1, le=5_000, description="About so many on a track; shorter ones are put together.")
    ] = 300,
) -> Response:
    """Operations of each stream in a window of the predicted step, and what the compute stream waits for."""
    step = services.simulations.step(caller.tenant, plan_id)
    return _json(request, StreamsOverStep.of(step, start_ns, end_ns, pieces), plan_id)


@router.get(
    "/v1/plans/{plan_id}/diff",
    summary="Compare two plans",
    response_model=PlansCompared,
    responses={304: NOT_CHANGED, **PROBLEM_RESPONSES},
)
def compare_plans(
    caller: Reader,
    services: ServicesDep,
    request: Request,
    plan_id: ContentHash,
    other: Annotated[
        str,
        Query(alias="with", pattern=SHA256_PATTERN, description="The later plan.", examples=[EXAMPLE_HASH]),
    ],
) -> Response:
    """Inputs, decisions and predictions that differ, in words and numbers."""
    found = services.simulations.difference(caller.tenant, plan_id, other)
    return _json(request, PlansCompared.of(found), plan_id)


def _json(request: Request, answer: BaseModel, plan_id: str) -> Response:
    return tagged(request, _tag(plan_id), lambda: answer.model_dump_json().encode())


def _tag(plan_id: str) -> str:
    """What is worked out from a plan changes only with the planner that works it out."""
    return f"{plan_id}.{PLANNER_VERSION}"
