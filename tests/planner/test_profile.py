"""Measured numbers replace the roofline, the plan says which are which, and decides differently where it should."""

from benchmarks.example_plans import request_for
from planner.costs import CostModel
from planner.plan import make_plan
from planner.schema import (
    CallMeasurement,
    CollectiveMeasurement,
    CurvePoint,
    FixedChoice,
    MeshPlan,
    NumberSource,
    PlanBody,
    PlanRequest,
    Profile,
    Quantiles,
    SearchLimits,
)

GIB = 2**30


def planned(request: PlanRequest, profile: Profile | None) -> PlanBody:
    """A feasible plan under a profile."""
    limits = SearchLimits(gap=0.01)
    body = make_plan(request.model_copy(update={"profile": profile, "search": limits})).body
    assert body.outcome == "feasible"
    return body


def slow_between_nodes() -> Profile:
    """Gathers and reduce-scatters over all 64 ranks at a tenth of what 8 ranks of one node reach."""
    curves = []
    for collective in ("all_gather", "reduce_scatter"):
        for num_ranks, num_nodes, bytes_per_ns in ((8, 1, 300), (64, 8, 30)):
            points = tuple(
                CurvePoint(size_bytes=size, duration_ns=20_000 + size // bytes_per_ns)
                for size in (2**20, GIB, 4 * GIB)
            )
            curves.append(
                CollectiveMeasurement(
                    collective=collective, num_ranks=num_ranks, num_nodes=num_nodes, points=points
                )
            )
    return Profile(collectives=tuple(curves))


def test_slow_links_between_nodes_make_the_plan_hybrid() -> None:
    request = request_for("llama-3-8b", "h100-64")
    assumed, measured = planned(request, None), planned(request, slow_between_nodes())
    assert assumed.decisions is not None
    assert measured.decisions is not None
    assert assumed.decisions.mesh.shard == 64
    assert measured.decisions.mesh.shard < 64
    assert measured.decisions.mesh.replicate > 1
    assert assumed.inputs.profile is None
    assert measured.inputs.profile is not None


def test_measured_durations_are_used_and_marked() -> None:
    request = request_for("gpt-2", "rtx4090-4")
    block = next(call.kind for call in request.model.calls if call.kind.startswith("block"))
    profile = Profile(
        calls=(
            CallMeasurement(
                kind=block,
                micro_batch=1,
                sequence=1024,
                forward_ns=50_000_000,
                backward_ns=90_000_000,
                recompute_ns=45_000_000,
            ),
        )
    )
    assumed, measured = planned(request, None), planned(request, profile)
    assert assumed.predictions is not None
    assert measured.predictions is not None
    num_blocks = sum(call.kind == block for call in request.model.calls)
    per_step = 16 * num_blocks * 140_000_000
    assert measured.predictions.breakdown.compute_ns > per_step > assumed.predictions.breakdown.compute_ns
    marked = {number.name: number.source for number in measured.predictions.sources}
    assert NumberSource.MEASURED in marked.values()
    assert NumberSource.ASSUMED in marked.values()
    assert {number.source for number in assumed.predictions.sources} == {NumberSource.ASSUMED}


def test_a_robust_plan_counts_on_the_slow_tail_of_links_and_says_so() -> None:
    request = request_for("gpt-2", "rtx4090-4")
    tails = Quantiles(p10=90_000, p99=40_000_000, num_samples=100)
    curves = tuple(
        CollectiveMeasurement(
            collective=collective,
            num_ranks=4,
            points=(CurvePoint(size_bytes=2**24, duration_ns=4_000_000, quantiles=tails),),
        )
        for collective in ("all_gather", "reduce_scatter")
    )
    request = request.model_copy(update={"fixed": (FixedChoice(knob="mesh.shard", value=4),)})
    profile = Profile(collectives=curves)
    usual = planned(request, profile)
    robust = planned(request.model_copy(update={"robust": True}), profile)
    assert usual.predictions is not None
    assert robust.predictions is not None
    assert robust.predictions.step_time_ns > usual.predictions.step_time_ns
    bases = {number.name: number.basis for number in robust.predictions.sources}
    assert bases["all_gather: rate"] == "99th percentile"
    assert not any(number.basis for number in usual.predictions.sources)
    assert robust.inputs.request != usual.inputs.request
    unmeasured = planned(request.model_copy(update={"robust": True}), None)
    assert unmeasured.predictions == planned(request, None).predictions


def test_rates_of_another_optimizer_are_left_alone() -> None:
    request = request_for("gpt-2", "rtx4090-4")
    mesh = MeshPlan(shard=4)

    def named(optimizer: str) -> set[str]:
        profile = Profile(optimizer=optimizer, optimizer_parameters_per_s=10**9)
        return {one.name for one in CostModel.of(request.model_copy(update={"profile": profile}), mesh).sources()}

    number = "parameters updated by the optimizer"
    assert number in named("adamw/foreach")
    assert number in named("")
    assert number not in named("adamw/fused")
