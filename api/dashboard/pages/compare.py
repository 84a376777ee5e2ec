"""`/compare`: two plans side by side."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query, Request, Response

from api.dashboard.dependencies import Viewer, page_router
from api.dashboard.rendering import page
from api.http.dependencies import SHA256_PATTERN, ServicesDep
from api.http.simulations.views import PlansCompared
from api.quantities import change, duration, percent, quantity, size
from api.service.plans import PlanFilter
from planner.schema.plan import Predictions

router = page_router()

CHOICES = 50
"""Newest plans that the form offers."""
_IN_THE_TABLE = ("predictions", "certificate.lower_bound")
PlanParameter = Annotated[str | None, Query(pattern=SHA256_PATTERN)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRow:
    """One prediction of both plans."""

    name: str
    before: str
    after: str
    change: str
    verdict: str
    """`better`, `worse`, or empty where it is neither."""


@router.get("/compare")
def compare(
    viewer: Viewer, services: ServicesDep, request: Request, a: PlanParameter = None, b: PlanParameter = None
) -> Response:
    """Two plans, or the form that asks for them."""
    choices = services.plans.page(viewer.tenant, PlanFilter(), cursor=None, limit=CHOICES).items
    if a is None or b is None:
        return page(request, "compare.html", choices=choices, a=a, b=b, found=None)
    found = services.simulations.difference(viewer.tenant, a, b)
    before, after = found.before.body.predictions, found.after.body.predictions
    shown = PlansCompared.of(found)
    return page(
        request,
        "compare.html",
        choices=choices,
        a=a,
        b=b,
        found=found,
        inputs=shown.inputs,
        changes=[one for one in shown.changes if not one.path.startswith(_IN_THE_TABLE)],
        rows=number_rows(before, after) if before and after else (),
        most_bytes=max(one.peak.reserved_bytes for one in (before, after)) if before and after else 0,
    )


def number_rows(before: Predictions, after: Predictions) -> tuple[NumberRow, ...]:
    """Times and sizes of two plans; for all but throughput less is better."""
    rows = [
        _row("step time", before.step_time_ns, after.step_time_ns, duration),
        _row("tokens/s", before.tokens_per_s, after.tokens_per_s, quantity, more_is_better=True),
        _row(
            "MFU",
            before.model_flops_utilization,
            after.model_flops_utilization,
            percent,
            more_is_better=True,
        ),
        _row("peak memory, pools apart", before.peak.reserved_bytes, after.peak.reserved_bytes, size),
        _row("peak memory, allocated", before.peak.allocated_bytes, after.peak.allocated_bytes, size),
        _row("memory budget", before.budget.budget_bytes, after.budget.budget_bytes, size, more_is_better=True),
        _row("host memory", before.host_bytes, after.host_bytes, size),
    ]
    for name in type(before.breakdown).model_fields:
        if name != "total_ns":
            old, new = getattr(before.breakdown, name), getattr(after.breakdown, name)
            rows.append(_row(name.removesuffix("_ns").replace("_", " "), old, new, duration))
    for name in ("num_all_gathers", "num_reduce_scatters", "num_all_reduces"):
        old, new = getattr(before, name), getattr(after, name)
        rows.append(_row(name.removeprefix("num_").replace("_", "-"), old, new, str))
    return tuple(row for row in rows if row is not None)


def _row(
    name: str, before: float, after: float, words: Callable[..., str], *, more_is_better: bool = False
) -> NumberRow | None:
    """None where neither plan has it."""
    if not before and not after:
        return None
    is_better = (after > before) == more_is_better
    return NumberRow(
        name=name,
        before=words(before),
        after=words(after),
        change=change(before, after),
        verdict="" if before == after else "better" if is_better else "worse",
    )
