"""A new plan beside the old one: what came of it, why, and whether the policy lets it take over."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from planner.explain import diff
from planner.schema import PlanBody
from planner.schema.base import Part
from profiles_db.tables import Verdict

TOLERANCE = 0.001
"""Relative difference that is none."""
MAX_REASONS = 12
_NOT_TOLD = ("inputs.", "certificate", "predictions.breakdown", "predictions.budget", "planner_version")


class Policy(Part):
    """When a new revision takes over without a person."""

    activate_within_percent: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] | None = 0.0
    """It fits and is at most so much slower than the old one; None always waits for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a new plan is beside the old one."""

    verdict: Verdict
    change: float | None
    """Of what is minimised: new over old, less one; None where one of them does not fit."""
    reasons: list[str]


def compare(old: PlanBody, new: PlanBody) -> Compared:
    """Judge a new plan by what the request minimises."""
    if new.infeasibility is not None:
        return Compared(
            verdict=Verdict.INFEASIBLE, change=None, reasons=[new.infeasibility.reason, *new.infeasibility.advice]
        )
    reasons = [item.words for item in diff(old, new) if not item.path.startswith(_NOT_TOLD)]
    more = len(reasons) - MAX_REASONS
    told = [*reasons[:MAX_REASONS], *([f"and {more} more differences"] if more > 0 else [])]
    if old.certificate is None or new.certificate is None:
        return Compared(verdict=Verdict.BETTER, change=None, reasons=["the old plan did not fit", *told])
    change = new.certificate.value / max(1, old.certificate.value) - 1
    verdict = Verdict.UNCHANGED if abs(change) <= TOLERANCE else Verdict.BETTER if change < 0 else Verdict.WORSE
    return Compared(verdict=verdict, change=round(change, 6), reasons=told)


def may_take_over(policy: Policy, found: Compared) -> bool:
    """Whether a new revision becomes active without a person."""
    limit = policy.activate_within_percent
    if limit is None or found.verdict is Verdict.INFEASIBLE:
        return False
    return found.change is None or found.change <= max(TOLERANCE, limit / 100)
