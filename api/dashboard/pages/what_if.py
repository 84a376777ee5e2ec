"""`/what-if`: a plan under other sizes, ranks or memory, or without some knobs; predicted at once."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from api.dashboard.dependencies import Form, PlanningViewer, Viewer, page_router
from api.dashboard.pages.compare import CHOICES, number_rows
from api.dashboard.rendering import page
from api.http.body import with_body
from api.http.dependencies import SHA256_PATTERN, ServicesDep
from api.http.simulations.views import broken_limits
from api.service.callers import Scope
from api.service.plans import PlanFilter
from planner.schema import ClientFeature, InvalidDocument, PlanRequest
from planner.schema.errors import ShardwrightError
from planner.schema.plan import Plan
from planner.what_if import Change

router = page_router()

GIB = 2**30
_NUMBERS = ("micro_batch", "sequence", "global_batch", "num_ranks")
FEATURE_WORDS = {feature: feature.value.replace("_", " ") for feature in ClientFeature}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the form starts with: the values of the plan."""

    micro_batch: int
    sequence: int
    global_batch: int
    num_ranks: int
    budget_gib: str


@router.get("/what-if")
def show_form(
    viewer: Viewer,
    services: ServicesDep,
    request: Request,
    plan: Annotated[str | None, Query(pattern=SHA256_PATTERN)] = None,
) -> Response:
    """The form, or a choice of plans to start from."""
    if plan is None:
        chosen = services.plans.page(viewer.tenant, PlanFilter(), cursor=None, limit=CHOICES)
        return page(request, "what_if.html", plan=None, choices=chosen.items)
    found = services.simulations.plan(viewer.tenant, plan)
    asked = services.simulations.request(viewer.tenant, found)
    return page(
        request,
        "what_if.html",
        plan=found,
        asked=asked,
        plan_id=plan,
        sizes=_sizes(found, asked),
        features=FEATURE_WORDS,
        used=set(found.body.requires.client_features),
        barred=set() if asked.client_features is None else set(ClientFeature) - set(asked.client_features),
        may_plan=Scope.PLAN in viewer.scopes,
    )


@router.post("/what-if/simulate")
async def simulate(viewer: Viewer, services: ServicesDep, request: Request, form: Form) -> Response:
    """What the form asks for, predicted; or why it cannot be."""
    return await with_body(request, _simulate, viewer.tenant, services, request, form)


def _simulate(tenant: str, services: ServicesDep, request: Request, form: dict[str, str]) -> Response:
    try:
        plan_id, change = _asked(form)
        found = services.simulations.what_if(tenant, plan_id, change)
        plan = services.simulations.plan(tenant, plan_id)
    except ShardwrightError as error:
        return page(request, "what_if_result.html", why=str(error), found=None)
    before = plan.body.predictions
    assert before is not None, "only plans that fit are simulated"
    return page(
        request,
        "what_if_result.html",
        why="",
        found=found,
        problems=list(broken_limits(found)),
        rows=number_rows(before, found.predictions),
        is_same=found.request.content_hash() == plan.body.inputs.request,
    )


@router.post("/what-if/solve")
async def solve(viewer: PlanningViewer, services: ServicesDep, form: Form) -> Response:
    """Ask for a plan of the changed request, and go to its job, or to the plan where there is one already."""

    def ask() -> str:
        plan_id, change = _asked(form)
        job = services.plans.submit_request(viewer, services.simulations.changed(viewer.tenant, plan_id, change))
        return f"/plans/{job.plan_id}" if job.plan_id is not None else f"/jobs/{job.job_id}"

    return RedirectResponse(await run_in_threadpool(ask), 303)


def _asked(form: dict[str, str]) -> tuple[str, Change]:
    """The plan and the change that a form names; a field that is empty leaves what the plan has.

    Raises:
        InvalidDocument: a field is not a number of its kind.
    """
    values: dict[str, object] = {}
    for name in _NUMBERS:
        text = form.get(name, "").strip()
        if text:
            values[name] = _whole(name, text)
    text = form.get("budget_gib", "").strip()
    if text:
        values["memory_bytes"] = _gib(text)
    values["forbidden"] = [feature for feature in ClientFeature if form.get(f"forbid_{feature.value}")]
    return form.get("plan", ""), Change.model_validate(values)


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) < 1:
        message = f"{text[:40]!r} is not a whole number above 0"
        raise InvalidDocument(f"{name.replace('_', ' ')}: {message}", problems=((name, message),))
    return int(text)


def _gib(text: str) -> int:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < 2**20:
        message = f"{text[:40]!r} is not an amount of GiB"
        raise InvalidDocument(f"budget: {message}", problems=(("budget_gib", message),))
    return round(amount * GIB)


def _sizes(plan: Plan, asked: PlanRequest) -> Sizes:
    decisions, limit = plan.body.decisions, asked.limits.memory_bytes
    return Sizes(
        micro_batch=asked.workload.micro_batch if decisions is None else decisions.micro_batch,
        sequence=asked.workload.sequence,
        global_batch=asked.workload.global_batch,
        num_ranks=asked.cluster.num_devices,
        budget_gib="" if limit is None else f"{limit / GIB:g}",
    )
