"""`/plans/ID`: a plan from its figures to its proof, and what can be done with it."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Query, Request, Response

from api.dashboard.dependencies import Viewer, page_router
from api.dashboard.plan.alternatives import trades
from api.dashboard.plan.buffers import MAX_BUFFERS, buffer_pictures
from api.dashboard.plan.by_hand import decisions_yaml
from api.dashboard.plan.measured import measured_part
from api.dashboard.plan.strip import decision_strip
from api.dashboard.plan.tables import CATEGORY_NAMES, memory_table, track_rows
from api.dashboard.rendering import page
from api.folding import fold_units
from api.http.dependencies import ContentHash, ServicesDep
from api.http.simulations.views import MemoryOverStep, StreamsOverStep
from api.plan_words import global_words, shadow_words
from api.service.errors import NoDecisions
from api.service.simulations import Step
from planner.schema import NumberSource
from planner.schema.errors import ShardwrightError

router = page_router()

SNIPPET = """\
# curl -H "Authorization: Bearer $SHARDWRIGHT_API_KEY" {url}/v1/plans/{plan_id} -o plan.json
import torch
from runtime_client.apply import apply_plan
from runtime_client.client import load_plan

applied = apply_plan(model, load_plan("plan.json"))
optimizer = applied.optimizer(torch.optim.AdamW, lr=3e-4)
"""
_POINTS = 600


@router.get("/plans/{plan_id}")
def show_plan(viewer: Viewer, services: ServicesDep, request: Request, plan_id: ContentHash) -> Response:
    """The page. Memory and streams, which take a replay, follow by themselves."""
    plan = services.simulations.plan(viewer.tenant, plan_id)
    asked = services.simulations.request(viewer.tenant, plan)
    body = plan.body
    buffers = buffer_pictures(body, asked)
    decisions, predictions = body.decisions, body.predictions
    return page(
        request,
        "plan.html",
        plan=plan,
        body=body,
        plan_id=plan_id,
        asked=asked,
        words=global_words(decisions) if decisions else "",
        strip=decision_strip(decisions) if decisions else None,
        unit_rows=fold_units(decisions) if decisions else (),
        buffers=buffers[:MAX_BUFFERS],
        num_more_buffers=max(0, len(buffers) - MAX_BUFFERS),
        trades=trades(body),
        shadow=shadow_words(body),
        **(measured_part(services, viewer.tenant, plan) if predictions else {"reports": ()}),
        sources={
            source.value: [number for number in predictions.sources if number.source is source]
            for source in NumberSource
        }
        if predictions
        else {},
        snippet=SNIPPET.format(url=str(request.base_url).rstrip("/"), plan_id=plan_id),
    )


@router.get("/plans/{plan_id}/memory")
def show_memory(viewer: Viewer, services: ServicesDep, request: Request, plan_id: ContentHash) -> Response:
    """The panel of memory over the step."""
    return _panel(
        request,
        plan_id,
        lambda: page(
            request,
            "plan_memory.html",
            plan_id=plan_id,
            step=(step := services.simulations.step(viewer.tenant, plan_id)),
            table=memory_table(step),
            names=CATEGORY_NAMES,
            predictions=step.plan.body.predictions,
        ),
    )


@router.get("/plans/{plan_id}/streams")
def show_streams(viewer: Viewer, services: ServicesDep, request: Request, plan_id: ContentHash) -> Response:
    """The panel of the streams."""
    return _panel(
        request,
        plan_id,
        lambda: page(
            request,
            "plan_streams.html",
            plan_id=plan_id,
            step=(step := services.simulations.step(viewer.tenant, plan_id)),
            rows=track_rows(step),
            breakdown=_parts(step),
        ),
    )


@router.get("/plans/{plan_id}/memory.json")
def get_memory(viewer: Viewer, services: ServicesDep, plan_id: ContentHash) -> MemoryOverStep:
    """What the chart of memory draws."""
    return MemoryOverStep.of(services.simulations.step(viewer.tenant, plan_id), _POINTS)


@router.get("/plans/{plan_id}/streams.json")
def get_streams(
    viewer: Viewer,
    services: ServicesDep,
    plan_id: ContentHash,
    start_ns: Annotated[int, Query(ge=0, le=2**53 - 1)] = 0,
    end_ns: Annotated[int | None, Query(ge=1, le=2**53 - 1)] = None,
    pieces: Annotated[int, Query(ge=1, le=2_000)] = 300,
) -> StreamsOverStep:
    """What the chart of streams draws: a window of the step."""
    return StreamsOverStep.of(services.simulations.step(viewer.tenant, plan_id), start_ns, end_ns, pieces)


@router.get("/plans/{plan_id}/plan.json")
def download_plan(viewer: Viewer, services: ServicesDep, plan_id: ContentHash) -> Response:
    """The plan as the API gives it."""
    return _download(services.plans.get(viewer.tenant, plan_id), "application/json", plan_id, "plan.json")


@router.get("/plans/{plan_id}/trace.json")
def download_trace(viewer: Viewer, services: ServicesDep, plan_id: ContentHash) -> Response:
    """The step as Chrome trace JSON."""
    return _download(services.simulations.trace(viewer.tenant, plan_id), "application/json", plan_id, "trace.json")


@router.get("/plans/{plan_id}/decisions.yaml")
def download_decisions(viewer: Viewer, services: ServicesDep, plan_id: ContentHash) -> Response:
    """The decisions for who applies them by hand."""
    plan = services.simulations.plan(viewer.tenant, plan_id)
    if plan.body.decisions is None:
        raise NoDecisions(plan_id)
    return _download(decisions_yaml(plan).encode(), "application/yaml", plan_id, "decisions.yaml")


def _parts(step: Step) -> list[tuple[str, int]]:
    """Names and times (ns) of what a step consists of, without what it has not."""
    predictions = step.plan.body.predictions
    assert predictions is not None, "a plan with a step has predictions"
    parts = predictions.breakdown.model_dump(exclude={"total_ns"})
    return [(name, value) for name, value in parts.items() if value]


def _download(content: bytes, media_type: str, plan_id: str, name: str) -> Response:
    short = plan_id.removeprefix("sha256:")[:12]
    headers = {"Content-Disposition": f'attachment; filename="{short}-{name}"'}
    return Response(content, media_type=media_type, headers=headers)


def _panel(request: Request, plan_id: str, render: Callable[[], Response]) -> Response:
    """A panel, or why there is none; a panel that is missing must not take the page with it."""
    try:
        return render()
    except ShardwrightError as error:
        return page(request, "plan_no_panel.html", plan_id=plan_id, why=str(error))
