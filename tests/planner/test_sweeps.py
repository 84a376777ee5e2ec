"""Sweeps of small jobs against all plans there are, and against one size after the other."""

import pytest

from planner.check import check
from planner.found import Progress
from planner.plan import make_plan
from planner.resize import has_plan, in_micro_batches
from planner.schema import (
    ClientFeature,
    FixedChoice,
    InconsistentRequest,
    Limits,
    NodeGroup,
    Objective,
    Plan,
    PlanRequest,
    Polynomial,
    SavedTensor,
    SearchLimits,
)
from planner.sweeps import Planned, fewest_ranks, front, largest_micro_batch
from tests.planner.factories import CallSpec, tiny_cluster, tiny_model, tiny_request
from tests.planner.random_requests import random_request
from tests.planner.test_plan import EXACT, FEATURES, everything

OFFLOADS = tuple(feature for feature in ClientFeature if "offload" in feature or "nvme" in feature)
ON_DEVICE = tuple(feature for feature in ClientFeature if feature not in OFFLOADS)
BLOCK = CallSpec(shapes=((64, 16), (16,)), saved=4000, forward_live=(1000,), backward_live=((5000, 2),))


def small_request(num_blocks: int, num_devices: int = 2, devices_per_node: int | None = None) -> PlanRequest:
    cluster = tiny_cluster(num_devices, devices_per_node=devices_per_node)
    request = tiny_request(tiny_model(num_blocks, block=BLOCK), cluster)
    return request.model_copy(update={"client_features": ON_DEVICE})


def costs(point: Planned) -> tuple[int, int]:
    assert point.predictions is not None
    return point.predictions.step_time_ns, point.predictions.peak.reserved_bytes


@pytest.mark.parametrize("seed", range(6))
def test_a_front_is_that_of_all_plans(seed: int) -> None:
    request = random_request(seed, num_blocks=1 + seed % 2, num_devices=2 if seed % 3 else 4)
    request = request.model_copy(update={"search": EXACT, "client_features": FEATURES[seed % len(FEATURES)]})
    outcomes = everything(request)
    points = front(request, 5)
    found = [costs(point) for point in points]
    assert found[0][0] == min(step for step, _ in outcomes)
    assert found[-1][1] == min(peak for _, peak in outcomes)
    assert found == sorted(found)
    assert [peak for _, peak in found] == sorted({peak for _, peak in found}, reverse=True)
    for point, (step, peak) in zip(points, found, strict=True):
        assert check(point.request, point.plan.body).passed
        if point.request.objective is Objective.STEP_TIME:
            assert step == min(other for other, needed in outcomes if needed <= peak)


def test_a_front_keeps_the_limits_of_the_request() -> None:
    request = small_request(4)
    free = [costs(point) for point in front(request, 4)]
    limits = Limits(memory_bytes=free[0][1] - 1, step_time_ns=free[-1][0] - 1)
    kept = [costs(point) for point in front(request.model_copy(update={"limits": limits}), 4)]
    assert free[0][0] <= kept[0][0] <= kept[-1][0] < free[-1][0]
    assert free[0][1] > kept[0][1] >= kept[-1][1] >= free[-1][1]


def test_where_nothing_fits_a_front_is_the_reason() -> None:
    request = small_request(2).model_copy(update={"limits": Limits(memory_bytes=1)})
    (point,) = front(request, 3)
    assert point.plan.body.infeasibility is not None
    assert point.plan.body.infeasibility.budget_bytes == 1


def test_a_front_has_two_points_at_least() -> None:
    with pytest.raises(InconsistentRequest, match="at least 2 points, not 1"):
        front(tiny_request(), 1)


@pytest.mark.parametrize(("at", "num_searches"), [("fastest", 1), ("leanest", 2)])
def test_an_interrupt_ends_a_front_with_the_plans_that_there_are(at: str, num_searches: int) -> None:
    request, searches = small_request(4), []

    def tell(progress: Progress) -> None:
        what = progress.message.partition(":")[0]
        searches.append(what)
        if what == at and (progress.incumbent_ns or progress.incumbent_bytes):
            raise KeyboardInterrupt

    points = front(request, 4, on_progress=tell)
    assert list(dict.fromkeys(searches)) == ["fastest", "leanest"][:num_searches]
    assert len(points) == num_searches
    certificate = points[-1].plan.body.certificate
    assert certificate is not None
    assert certificate.status == "provisional"


def test_a_search_that_is_interrupted_before_it_has_a_plan_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [make_plan(small_request(2))]

    def plan_or_stop(*_: object, **__: object) -> Plan:
        if not plans:
            raise KeyboardInterrupt
        return plans.pop()

    monkeypatch.setattr("planner.sweeps.make_plan", plan_or_stop)
    assert len(front(small_request(2), 4)) == 1
    with pytest.raises(KeyboardInterrupt):
        front(small_request(2), 4)


def test_a_plan_between_fits_beside_its_communicators(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_large_communicators(request: PlanRequest, **_: object) -> Plan:
        body = make_plan(request).body
        assert body.predictions is not None
        budget = body.predictions.budget
        budget = budget.model_copy(update={"communicators_bytes": budget.device_bytes})
        predictions = body.predictions.model_copy(update={"budget": budget})
        return Plan.of(body.model_copy(update={"predictions": predictions}))

    request = small_request(4)
    stated = request.model_copy(update={"limits": Limits(memory_bytes=2**30)})
    assert len(front(request, 4)) == len(front(stated, 4)) == 4
    monkeypatch.setattr("planner.sweeps.make_plan", with_large_communicators)
    assert len(front(request, 4)) == 2
    assert len(front(stated, 4)) == 4


def growing_request(num_sequences: int, limits: Limits) -> PlanRequest:
    """Two ranks of `num_sequences` each; what blocks keep grows with the micro-batch, 4000 bytes a sequence."""
    request = tiny_request(tiny_model(3, block=BLOCK), tiny_cluster(2), num_micro_batches=num_sequences)
    block = request.model.kinds["block"]
    saved = (SavedTensor(size_bytes=Polynomial(b=4000)),)
    kinds = request.model.kinds | {
        "block": block.model_copy(update={"none": block.none.model_copy(update={"saved": saved})})
    }
    model = request.model.model_copy(update={"kinds": kinds})
    return request.model_copy(
        update={"model": model, "limits": limits, "search": SearchLimits(gap=0.0), "client_features": ON_DEVICE}
    )


def least_bytes(request: PlanRequest) -> int:
    body = make_plan(request.model_copy(update={"objective": Objective.PEAK_MEMORY})).body
    assert body.predictions is not None
    return body.predictions.peak.reserved_bytes


def test_the_largest_micro_batch_is_the_last_divisor_that_fits() -> None:
    request = growing_request(12, Limits())
    needed = {size: least_bytes(in_micro_batches(request, size)) for size in (4, 6)}
    assert needed[6] - needed[4] == 3 * 2 * 4000
    for budget, largest, beyond in (
        (needed[4], 4, 6),
        (needed[6] - 1, 4, 6),
        (needed[6], 6, 12),
        (2**30, 12, None),
    ):
        found = largest_micro_batch(request.model_copy(update={"limits": Limits(memory_bytes=budget)}))
        decisions = found.planned.plan.body.decisions
        assert decisions is not None
        assert (decisions.micro_batch, decisions.num_micro_batches, found.beyond) == (
            largest,
            12 // largest,
            beyond,
        )
        assert found.planned.request.workload.global_batch == 24
        assert check(found.planned.request, found.planned.plan.body).passed
        assert ("every plan needs at least" in found.why_not) == (beyond is not None)


def test_where_no_micro_batch_fits_the_smallest_says_why() -> None:
    found = largest_micro_batch(growing_request(4, Limits(memory_bytes=1)))
    assert found.planned.request.workload.micro_batch == 1
    assert found.planned.plan.body.infeasibility is not None
    assert found.beyond is None


def on(request: PlanRequest, nodes: int, per_node: int) -> PlanRequest:
    (group,) = request.cluster.node_groups
    group = NodeGroup.model_validate(group.model_dump() | {"num_nodes": nodes, "devices_per_node": per_node})
    cluster = request.cluster.model_copy(update={"node_groups": (group,), "inter_node": group.intra_node})
    batch = -(-request.workload.global_batch // (nodes * per_node)) * nodes * per_node
    workload = request.workload.model_copy(update={"global_batch": batch})
    return request.model_copy(update={"cluster": cluster, "workload": workload})


@pytest.mark.parametrize(
    ("nodes", "per_node", "shapes"),
    [(1, 4, [(1, 1), (1, 2), (1, 4), (2, 4)]), (2, 2, [(1, 1), (1, 2), (2, 2), (3, 2)])],
)
def test_the_fewest_ranks_are_the_first_that_fit(nodes: int, per_node: int, shapes: list[tuple[int, int]]) -> None:
    request = small_request(3, nodes * per_node, per_node)
    request = request.model_copy(
        update={"client_features": (), "fixed": (FixedChoice(knob="mesh.shard", value=4),)}
    )
    open_request = request.model_copy(update={"fixed": ()})
    needed = [least_bytes(on(open_request, *shape)) for shape in shapes]
    assert needed == sorted(set(needed), reverse=True)
    for index, (budget, shape) in enumerate(zip(needed, shapes, strict=True)):
        limits = Limits(memory_bytes=budget)
        found = fewest_ranks(request.model_copy(update={"limits": limits}))
        ranks = shape[0] * shape[1]
        assert found.planned.plan.body.world_size == ranks
        before = shapes[index - 1] if index else None
        assert found.beyond == (None if before is None else before[0] * before[1])
        if before is not None:
            assert not has_plan(on(open_request, *before).model_copy(update={"limits": limits}))
            assert "every plan needs at least" in found.why_not
        asked, planned = request.workload.global_batch, found.planned.request.workload.global_batch
        assert planned == -(-asked // ranks) * ranks


def test_where_no_number_of_ranks_fits_the_plan_says_why() -> None:
    request = small_request(2)
    found = fewest_ranks(request.model_copy(update={"limits": Limits(memory_bytes=1)}))
    assert found.planned.plan.body.world_size == 2
    assert found.planned.plan.body.infeasibility is not None


def test_the_fewest_ranks_are_sought_among_equal_nodes() -> None:
    request = tiny_request()
    (group,) = request.cluster.node_groups
    cluster = request.cluster.model_copy(update={"node_groups": (group, group), "inter_node": group.intra_node})
    with pytest.raises(InconsistentRequest, match="equal nodes"):
        fewest_ranks(request.model_copy(update={"cluster": cluster}))
