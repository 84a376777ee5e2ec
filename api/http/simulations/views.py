"""What simulations and the step of a plan look like from outside."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, WithJsonSchema

from api.http.differences import Change
from api.service.simulations import PlanDifference, Simulated, Step
from planner.schema import MemoryCategory, Predictions
from planner.simulate.memory_series import thinned
from planner.simulate.streams import Work, window


def contract(name: str) -> WithJsonSchema:
    """The schema of a contract document, for fields that hold its JSON."""
    return WithJsonSchema({"allOf": [{"$ref": f"#/components/schemas/{name}"}]})


class Simulation(BaseModel):
    """What a configuration costs, and whether it fits."""

    fits: bool
    why_not: list[str]
    """Each limit that it breaks, in words."""
    notes: list[str]
    """How the decisions were changed to be carried over to what was asked."""
    predictions: Annotated[dict[str, Any], contract("Predictions")]
    decisions: Annotated[dict[str, Any], contract("Decisions")]
    request_hash: str
    """Identity of the request that a solve would answer."""

    @classmethod
    def of(cls, found: Simulated) -> "Simulation":
        """Show a simulation."""
        why_not = list(broken_limits(found))
        return cls(
            fits=not why_not,
            why_not=why_not,
            notes=list(found.notes),
            predictions=found.predictions.model_dump(mode="json"),
            decisions=found.decisions.model_dump(mode="json", exclude_defaults=True),
            request_hash=found.request.content_hash(),
        )


def broken_limits(found: Simulated) -> Iterator[str]:
    """What a configuration takes too much of."""
    predictions: Predictions = found.predictions
    over_bytes = predictions.peak.reserved_bytes - predictions.budget.budget_bytes
    if over_bytes > 0:
        yield f"{over_bytes} bytes over the memory budget of {predictions.budget.budget_bytes}"
    if 0 < predictions.host_budget_bytes < predictions.host_bytes:
        yield f"{predictions.host_bytes - predictions.host_budget_bytes} bytes over the host memory of a rank"
    limit_ns = found.request.limits.step_time_ns
    if limit_ns is not None and predictions.step_time_ns > limit_ns:
        yield f"{predictions.step_time_ns - limit_ns} ns over the step time of {limit_ns}"


class MicroBatchSpan(BaseModel):
    """A micro-batch that differs from those before it."""

    start_ns: int
    duration_ns: int
    num: int
    """How many of the step are like it."""

    @classmethod
    def all_of(cls, step: Step) -> "list[MicroBatchSpan]":
        """Show those of a step."""
        return [cls(start_ns=start, duration_ns=duration, num=num) for start, duration, num in step.micro_batches]


class MemoryOverStep(BaseModel):
    """Allocated device memory of one rank over a step, by category: columns of equal length."""

    plan_id: str
    agrees: bool
    """False when the server's planner predicts another step time than the plan states (another version made it)."""
    times_ns: list[int]
    moments: list[str]
    by_category_bytes: dict[MemoryCategory, list[int]]
    total_bytes: list[int]
    num_points: int
    """Before they were thinned out."""
    peak_index: int
    """Which of them is the peak: `allocated_bytes` of the plan."""
    reserved_bytes: int
    """Sum of the pool peaks, which the budget bounds."""
    budget_bytes: int
    micro_batches: list[MicroBatchSpan]
    optimizer_start_ns: int
    shown_ns: int
    step_time_ns: int

    @classmethod
    def of(cls, step: Step, most: int) -> "MemoryOverStep":
        """Show about `most` points."""
        samples = thinned(step.samples, most)
        totals = [sample.point.total_bytes for sample in samples]
        predictions = step.plan.body.predictions
        assert predictions is not None, "a plan with decisions has predictions"
        return cls(
            plan_id=step.plan.envelope.plan_id,
            agrees=step.agrees,
            times_ns=[sample.time_ns for sample in samples],
            moments=[sample.point.moment for sample in samples],
            by_category_bytes={
                category: values
                for category in MemoryCategory
                if any(values := [sample.bytes_of(category) for sample in samples])
            },
            total_bytes=totals,
            num_points=len(step.samples),
            peak_index=totals.index(max(totals)),
            reserved_bytes=predictions.peak.reserved_bytes,
            budget_bytes=predictions.budget.budget_bytes,
            micro_batches=MicroBatchSpan.all_of(step),
            optimizer_start_ns=step.optimizer_start_ns,
            shown_ns=step.shown_ns,
            step_time_ns=step.step_time_ns,
        )


class WorkSpan(BaseModel):
    """An operation, a stall, or several short ones that were put together."""

    start_ns: int
    end_ns: int
    busy_ns: int
    kind: str
    owner: str
    num: int

    @classmethod
    def of(cls, work: Work) -> "WorkSpan":
        """Show a stretch of a track."""
        return cls(
            start_ns=work.start_ns,
            end_ns=work.end_ns,
            busy_ns=work.busy_ns,
            kind=work.kind,
            owner=work.owner,
            num=work.num,
        )


class StreamsOverStep(BaseModel):
    """What each stream does in a window of the step, and what the compute stream waits for (`stalls`)."""

    plan_id: str
    agrees: bool
    start_ns: int
    end_ns: int
    tracks: dict[str, list[WorkSpan]]
    stalled_ns: dict[str, int]
    """Of the whole step, as `predictions.breakdown` has them."""
    micro_batches: list[MicroBatchSpan]
    optimizer_start_ns: int
    shown_ns: int
    step_time_ns: int

    @classmethod
    def of(cls, step: Step, start_ns: int, end_ns: int | None, most: int) -> "StreamsOverStep":
        """Show a window with about `most` pieces of work in each track; None is the end of the step."""
        end_ns = step.shown_ns if end_ns is None else min(end_ns, step.shown_ns)
        shown = window(step.tracks, start_ns, end_ns, most=most)
        return cls(
            plan_id=step.plan.envelope.plan_id,
            agrees=step.agrees,
            start_ns=start_ns,
            end_ns=end_ns,
            tracks={track: [WorkSpan.of(work) for work in pieces] for track, pieces in shown.items()},
            stalled_ns=step.stalled_ns,
            micro_batches=MicroBatchSpan.all_of(step),
            optimizer_start_ns=step.optimizer_start_ns,
            shown_ns=step.shown_ns,
            step_time_ns=step.step_time_ns,
        )


class PlansCompared(BaseModel):
    """Two plans side by side: what was asked differently, and what came of it."""

    before: str
    after: str
    inputs: dict[str, str]
    """By kind of input: the change in words."""
    changes: list[Change]

    @classmethod
    def of(cls, found: PlanDifference) -> "PlansCompared":
        """Show a difference."""
        return cls(
            before=found.before.envelope.plan_id,
            after=found.after.envelope.plan_id,
            inputs={change.kind: change.words for change in found.inputs},
            changes=Change.all_of(found.differences),
        )
