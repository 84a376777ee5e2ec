"""`/v1/measurements` and `/v1/plans/ID/measurements`: jobs report, and plans are held to account."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

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
)
from api.http.examples import MEASUREMENT
from api.http.measurements.views import PredictedAgainstMeasured, Report, ReportPage
from api.http.openapi import PROBLEM_RESPONSES, document_body
from api.http.tracing import note

router = APIRouter(prefix="/v1", tags=["measurements"])

PlanFilter = Annotated[str | None, Query(pattern=SHA256_PATTERN, description="Only reports of this plan.")]


@router.post(
    "/measurements",
    summary="Report what steps took",
    operation_id="report_measurement",
    status_code=201,
    response_model=Report,
    responses={200: {"model": Report, "description": "It was reported before."}, **PROBLEM_RESPONSES},
    openapi_extra=document_body("Measurement", examples={"a hundred steps": MEASUREMENT}),
)
async def report_measurement(caller: Planner, services: ServicesDep, request: Request, body: JsonBody) -> Response:
    """Step time and peak of a range of steps under a plan. Reporting the same range of the same run again changes
    nothing, so a report can be sent until it is answered.
    """
    row, is_new = await with_body(request, services.measurements.add, caller, body)
    note(plan_id=row.plan_id)
    return JSONResponse(Report.of(row).model_dump(mode="json"), 201 if is_new else 200)


@router.get("/measurements", summary="List reports", response_model=ReportPage, responses=PROBLEM_RESPONSES)
def list_measurements(
    caller: Reader,
    services: ServicesDep,
    plan: PlanFilter = None,
    cursor: CursorParameter = None,
    limit: Limit = 50,
) -> Any:  # noqa: ANN401
    """Newest first; `next` of a page is the `cursor` of the one after it."""
    page = services.measurements.page(caller.tenant, plan_id=plan, cursor=cursor, limit=limit)
    return ReportPage(items=[Report.of(row) for row in page.items], next=page.next)


@router.get(
    "/plans/{plan_id}/measurements",
    summary="Hold a plan against its reports",
    response_model=PredictedAgainstMeasured,
    responses=PROBLEM_RESPONSES,
)
def compare_plan(caller: Reader, services: ServicesDep, plan_id: ContentHash) -> Any:  # noqa: ANN401
    """Predicted step time and peak, the newest report, and whether the last five are beyond the bounds."""
    return PredictedAgainstMeasured.of(services.measurements.compare(caller.tenant, plan_id))
