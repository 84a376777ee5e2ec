"""Laws of the search: what must hold between the plans of related requests, all solved to optimality."""

import json
from functools import cache
from random import Random
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.search_choices import narrowed
from benchmarks.search_requests import random_request
from planner.plan import make_plan
from planner.schema import (
    CallMeasurement,
    ClientFeature,
    CollectiveMeasurement,
    CopyMeasurement,
    CurvePoint,
    DeviceSheet,
    Limits,
    ModelDescription,
    NodeGroup,
    Objective,
    PlanBody,
    PlanRequest,
    Profile,
)

OFFLOADS = tuple(feature for feature in ClientFeature if "offload" in feature or "nvme" in feature)
FEATURES = tuple(feature for feature in ClientFeature if feature not in OFFLOADS)
"""Offloading is left to where nothing else fits, be it slower or not: with it the laws need not hold."""
UNLIMITED = 2**40
FACTOR = 2
SEEDS = st.integers(0, 2**20)


def sampled(number: int) -> settings:
    return settings(max_examples=number, derandomize=True, deadline=None, database=None)


@cache
def small(seed: int, max_plans: int = 300) -> PlanRequest:
    """A request with few enough plans, some choices being fixed."""
    request = random_request(seed)
    known = request.client_features or FEATURES
    features = tuple(feature for feature in known if feature in FEATURES)
    return narrowed(request.model_copy(update={"client_features": features}), Random(seed), max_plans=max_plans)


def limited(request: PlanRequest, memory_bytes: int = UNLIMITED, **update: object) -> PlanRequest:
    return request.model_copy(update={"limits": Limits(memory_bytes=memory_bytes)} | update)


def plan(request: PlanRequest, memory_bytes: int = UNLIMITED) -> PlanBody:
    body = make_plan(limited(request, memory_bytes)).body
    assert body.certificate is None or body.certificate.status == "optimal"
    return body


def time_of(body: PlanBody) -> float:
    """Of a step; nothing is slower than what does not fit."""
    return body.predictions.step_time_ns if body.predictions else float("inf")


def peak_of(body: PlanBody) -> int:
    assert body.predictions is not None
    return body.predictions.peak.reserved_bytes


def least_bytes(request: PlanRequest) -> int:
    return peak_of(plan(request.model_copy(update={"objective": Objective.PEAK_MEMORY})))


def between(request: PlanRequest, share: float) -> int:
    """A budget between the least that will do and what the fastest plan takes."""
    least = least_bytes(request)
    return least + round(share * (peak_of(plan(request)) - least))


@given(SEEDS)
@sampled(5)
def test_more_memory_is_never_slower(seed: int) -> None:
    request = small(seed)
    budgets = [between(request, share) for share in (0.0, 0.3, 0.6, 1.0)]
    times = [time_of(plan(request, budget)) for budget in budgets]
    assert times == sorted(times, reverse=True)
    assert times[0] < float("inf")
    assert times[-1] == time_of(plan(request))
    assert plan(request, budgets[0] - 1).outcome == "infeasible"


@given(SEEDS, st.lists(st.sampled_from(FEATURES), min_size=1, max_size=4, unique=True))
@sampled(8)
def test_more_features_are_never_slower(seed: int, features: list[ClientFeature]) -> None:
    *fewer, _ = features
    request = random_request(seed)
    simple, rich = (request.model_copy(update={"client_features": tuple(used)}) for used in (fewer, features))
    for budget in (UNLIMITED, between(simple, 0.3)):
        assert time_of(plan(rich, budget)) <= time_of(plan(simple, budget))
    assert least_bytes(rich) <= least_bytes(simple)


@given(SEEDS)
@sampled(8)
def test_fixing_a_choice_is_never_faster(seed: int) -> None:
    request = small(seed)
    fixed = narrowed(request, Random(seed + 1), max_plans=10)
    assume(fixed.fixed != request.fixed)
    for budget in (UNLIMITED, between(request, 0.3)):
        assert time_of(plan(fixed, budget)) >= time_of(plan(request, budget))
    assert least_bytes(fixed) >= least_bytes(request)


@given(SEEDS)
@sampled(6)
def test_names_of_modules_decide_nothing(seed: int) -> None:
    request = limited(small(seed), between(small(seed), 0.3))
    renamed = PlanRequest.model_validate_json(_renamed(request.model_dump_json()))
    assert renamed != request
    first, second = make_plan(request).body, make_plan(renamed).body
    for document, other in ((first.decisions, second.decisions), (first.predictions, second.predictions)):
        assert document is not None
        assert other is not None
        assert _renamed(document.model_dump_json()) == other.model_dump_json()


def _renamed(text: str) -> str:
    return text.replace("layers.", "blocks.")


@given(SEEDS)
@sampled(6)
def test_the_order_of_ranks_decides_nothing(seed: int) -> None:
    """Nodes told one by one in another order: other ranks, the same decisions and predictions."""
    request = limited(small(seed), between(small(seed), 0.3))
    groups = _groups(request.cluster.node_groups[0])
    assume(len(groups) > 1)
    first, *others = (
        make_plan(_on(request, order)).body for order in (groups, groups[::-1], groups[1:] + groups[:1])
    )
    for other in others:
        assert (first.decisions, first.predictions) == (other.decisions, other.predictions)


@given(SEEDS)
@sampled(6)
def test_how_equal_nodes_are_grouped_decides_nothing(seed: int) -> None:
    request = limited(small(seed), between(small(seed), 0.3))
    group = request.cluster.node_groups[0]
    assume(group.num_nodes > 1)
    single = group.model_copy(update={"num_nodes": 1})
    first, second = (make_plan(one).body for one in (request, _on(request, (single,) * group.num_nodes)))
    assert (first.decisions, first.predictions) == (second.decisions, second.predictions)


def _groups(group: NodeGroup) -> tuple[NodeGroup, ...]:
    """Its nodes one by one, each with less of the host than the one before."""
    return tuple(
        group.model_copy(
            update={
                "num_nodes": 1,
                "host_memory_bytes": max(0, group.host_memory_bytes - 100 * node),
                "host_cores": group.host_cores - node,
            }
        )
        for node in range(group.num_nodes)
    )


def _on(request: PlanRequest, groups: tuple[NodeGroup, ...]) -> PlanRequest:
    return request.model_copy(update={"cluster": request.cluster.model_copy(update={"node_groups": groups})})


@given(SEEDS)
@sampled(6)
def test_identical_requests_give_identical_bytes(seed: int) -> None:
    request = limited(small(seed), between(small(seed), 0.3))
    again = PlanRequest.from_json(request.canonical_bytes())  # as a server stores it, its keys in order
    assert make_plan(request).body.canonical_bytes() == make_plan(again).body.canonical_bytes()


@given(SEEDS, st.sampled_from((0.0, 0.3, 1.0)))
@sampled(8)
def test_slower_hardware_scales_the_optimum(seed: int, share: float) -> None:
    request = exact(small(seed))
    assert request.profile is not None
    slower = request.model_copy(update={"profile": _profile(request.profile, times=FACTOR)})
    budget = between(request, share)
    assert time_of(plan(slower, budget)) == FACTOR * time_of(plan(request, budget))


@given(SEEDS, st.sampled_from((0.0, 0.3, 1.0)))
@sampled(8)
def test_wider_elements_and_devices_change_no_decision(seed: int, share: float) -> None:
    request = exact(small(seed))
    assert request.profile is not None
    wider = request.model_copy(
        update={"model": _wider(request.model), "profile": _profile(request.profile, sizes=FACTOR)}
    )
    budget = between(request, share)
    before, after = plan(request, budget), plan(wider, FACTOR * budget)
    assert time_of(after) == time_of(before)
    assert peak_of(after) == FACTOR * peak_of(before)
    assert _without_counts(after) == _without_counts(before)


def _without_counts(body: PlanBody) -> object:
    assert body.decisions is not None
    units = tuple(unit.model_copy(update={"num_parameters": 0}) for unit in body.decisions.units)
    return body.decisions.model_copy(update={"units": units})


def exact(request: PlanRequest) -> PlanRequest:
    """The request with sizes and rates that divide each other, so that scaling them rounds nothing.

    The device's sheet is no more than a hundred times what is measured, as a sheet and a measurement are.
    Recomputation of some operations alone is not measured and its estimate rounds, so it is left out.
    """
    model, profile = request.model, request.profile
    assert profile is not None
    document = model.model_dump()
    for parameters in document["parameter_sets"].values():
        for parameter in parameters:
            first, *others = parameter["shape"]
            parameter["shape"] = (-(-first // 8) * 8, *others)
    for kind in document["kinds"].values():
        kind["selective"] = ()
    even = profile.model_copy(
        update={"compute_slowdown_under_communication": 0.0, "communication_slowdown_under_compute": 0.0}
    )
    (group,) = request.cluster.node_groups
    assert isinstance(group.device, DeviceSheet)
    device = group.device.model_copy(update={"memory_bytes_per_s": 10**11})
    cluster = request.cluster.model_copy(update={"node_groups": (group.model_copy(update={"device": device}),)})
    return request.model_copy(
        update={
            "model": ModelDescription.model_validate(document),
            "cluster": cluster,
            "profile": _profile(even),
            "fixed": tuple(choice for choice in request.fixed if not str(choice.value).startswith("selective")),
        }
    )


def _profile(profile: Profile, *, times: int = 1, sizes: int = 1) -> Profile:
    """Everything takes `times` as long, or moves `sizes` as much in its time; a byte or element each ns before."""

    def call(entry: CallMeasurement) -> CallMeasurement:
        names = ("forward_ns", "backward_ns", "recompute_ns")
        return entry.model_copy(update={name: times * getattr(entry, name) for name in names})

    def collective(entry: CollectiveMeasurement) -> CollectiveMeasurement:
        latency_ns = entry.points[0].duration_ns
        points = (
            CurvePoint(size_bytes=size, duration_ns=times * latency_ns + times * size // sizes)
            for size in (0, 2**40)
        )
        return entry.model_copy(update={"points": tuple(points)})

    def copy(entry: CopyMeasurement) -> CopyMeasurement:
        return entry.model_copy(update={"bytes_per_s": 10**9 * sizes // times})

    return profile.model_copy(
        update={
            "calls": tuple(map(call, profile.calls)),
            "collectives": tuple(map(collective, profile.collectives)),
            "copies": tuple(map(copy, profile.copies)),
            "launch_ns": times * (profile.launch_ns or 0),
            "optimizer_parameters_per_s": 10**9 * sizes // times,
        }
    )


def _wider(model: ModelDescription) -> ModelDescription:
    """All parameters, buffers and activations take `FACTOR` as much."""
    document = _scaled(json.loads(model.model_dump_json()))
    for parameters in document["parameter_sets"].values():
        for parameter in parameters:
            parameter["shape"][0] *= FACTOR
    document["buffers_bytes"] *= FACTOR
    return ModelDescription.model_validate(document)


def _scaled(document: Any) -> Any:
    """A document with every polynomial multiplied."""
    if isinstance(document, list):
        return [_scaled(item) for item in document]
    if not isinstance(document, dict):
        return document
    if "bss" in document:
        return {term: FACTOR * value for term, value in document.items()}
    return {key: _scaled(value) for key, value in document.items()}
