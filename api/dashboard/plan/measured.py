"""What the panel "Predicted against measured" shows."""

from collections.abc import Sequence
from typing import Any

from api.http.measurements.views import PredictedAgainstMeasured, Report
from api.service.services import Services
from planner.schema import Plan

SHOWN = 100
"""Newest reports that are drawn and listed."""


def measured_part(services: Services, tenant: str, plan: Plan) -> dict[str, Any]:
    """Values of the template, of a plan that predicts something."""
    compared = PredictedAgainstMeasured.of(services.measurements.compare_plan(tenant, plan))
    page = services.measurements.page(tenant, plan_id=plan.envelope.plan_id, cursor=None, limit=SHOWN)
    reports = [Report.of(row) for row in page.items]
    return {"compared": compared, "reports": reports, "drawing": _drawing(compared, reports)}


def _drawing(compared: PredictedAgainstMeasured, reports: Sequence[Report]) -> dict[str, Any]:
    """What the chart draws, the oldest report first."""
    points = [
        {
            "at": one.measured_at,
            "words": f"{one.run}, steps {one.first_step} to {one.last_step}",
            "ns": one.step_time_ns,
            "bytes": one.peak_bytes,
        }
        for one in sorted(reports, key=lambda one: one.measured_at)
    ]
    return {"step": compared.predicted_step_time_ns, "peak": compared.predicted_peak_bytes, "reports": points}
