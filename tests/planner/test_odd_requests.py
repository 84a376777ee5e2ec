"""Requests at the edges of what makes sense: the plan is still the best of all, and the checker still agrees."""

from dataclasses import replace

import pytest

from planner.check import recompute
from planner.plan import make_plan
from planner.schema import CallRole, ClientFeature, Limits, ModelDescription, Parameter, PlanRequest, SearchLimits
from planner.simulate import predict
from planner.space.regions import regions
from tests.planner.factories import (
    EMBEDDING,
    HEAD,
    NORM,
    CallSpec,
    ClusterSpec,
    call_kind,
    tiny_cluster,
    tiny_model,
    tiny_profile,
    tiny_request,
)
from tests.planner.random_requests import random_decisions
from tests.planner.test_plan import everything

EXACT = SearchLimits(gap=0.0, deterministic_time=200.0)
BLOCK = CallSpec(
    shapes=((64, 16), (16,)),
    saved=4000,
    forward_live=(1000, 5000),
    backward_live=((5000, 0), (6000, 1)),
    full_saved=500,
    full_backward_live=((6000, 0), (7000, 1)),
)


def frozen(spec: CallSpec) -> CallSpec:
    """The same call with parameters that are not trained."""
    return replace(
        spec,
        requires_grad=False,
        backward_live=[(live, 0) for live, _ in spec.backward_live],
        full_backward_live=[(live, 0) for live, _ in spec.full_backward_live],
    )


def uneven_model() -> ModelDescription:
    """A small block, one 64 times as large, and a small one again."""
    model = tiny_model(3, block=BLOCK, embedding=None, norm=None)
    shapes = ((4096, 16), (16,))
    return model.model_copy(
        update={
            "kinds": {**model.kinds, "large": call_kind(replace(BLOCK, shapes=shapes), CallRole.BLOCK)},
            "parameter_sets": {
                **model.parameter_sets,
                "large": tuple(Parameter(name=f"w{index}", shape=shape) for index, shape in enumerate(shapes)),
            },
            "calls": tuple(
                call.model_copy(update={"kind": "large"}) if call.path == "layers.1" else call
                for call in model.calls
            ),
            "modules": tuple(
                module.model_copy(update={"parameters": "large"}) if module.path == "layers.1" else module
                for module in model.modules
            ),
        }
    )


TWO_BLOCKS = tiny_model(2, block=BLOCK)
FROZEN = tiny_model(2, block=frozen(BLOCK), embedding=frozen(EMBEDDING), norm=frozen(NORM), head=frozen(HEAD))
NO_BACKWARD = replace(frozen(EMBEDDING), output_requires_grad=False)
ODD = {
    "one device": tiny_request(TWO_BLOCKS, tiny_cluster(1)),
    "five devices": tiny_request(TWO_BLOCKS, tiny_cluster(5)),
    "two nodes of three": tiny_request(TWO_BLOCKS, tiny_cluster(6, devices_per_node=3)),
    "no profile": tiny_request(TWO_BLOCKS, tiny_cluster(6, devices_per_node=3)).model_copy(
        update={"profile": None}
    ),
    "nothing trained": tiny_request(FROZEN, tiny_cluster(2)),
    "frozen blocks": tiny_request(tiny_model(2, block=frozen(BLOCK)), tiny_cluster(2)),
    "an embedding without backward": tiny_request(tiny_model(2, block=BLOCK, embedding=NO_BACKWARD)),
    "blocks alone": tiny_request(tiny_model(2, block=BLOCK, embedding=None, norm=None, head=None, loss=None)),
    "uneven blocks": tiny_request(uneven_model()),
    "bound by launches": tiny_request(TWO_BLOCKS, tiny_cluster(4), profile=tiny_profile(launch_ns=10**6)),
    "communication is free": tiny_request(
        TWO_BLOCKS,
        tiny_cluster(spec=ClusterSpec(link_bytes_per_s=10**15)),
        profile=tiny_profile(collective_bytes_per_ns=10**6),
    ),
    "communication is all": tiny_request(TWO_BLOCKS, profile=tiny_profile(collective_latency_ns=10**9)),
    "a million micro-batches": tiny_request(TWO_BLOCKS, num_micro_batches=10**6),
}
odd = pytest.mark.parametrize("request_", ODD.values(), ids=ODD.keys())


@odd
def test_the_replay_equals_the_checker(request_: PlanRequest) -> None:
    for seed in range(8):
        decisions = random_decisions(request_, seed)
        predicted, expected = predict(request_, decisions), recompute(request_, decisions)
        assert predicted.step_time_ns == expected.step_time_ns
        assert predicted.peak.reserved_bytes == expected.reserved_bytes
        assert predicted.peak.allocated_bytes == expected.allocated_bytes


@odd
def test_the_plan_is_optimal_at_its_very_peak(request_: PlanRequest) -> None:
    request_ = request_.model_copy(
        update={"client_features": (ClientFeature.CHECKPOINT_FULL, ClientFeature.HYBRID_MESH)}
    )
    outcomes = everything(request_)
    peaks = sorted({peak for _, peak in outcomes})
    for budget in {peaks[0], peaks[len(peaks) // 2]}:
        limits = Limits(memory_bytes=budget)
        body = make_plan(request_.model_copy(update={"search": EXACT, "limits": limits})).body
        best = min(time for time, peak in outcomes if peak <= budget)
        assert body.predictions is not None
        assert body.certificate is not None
        assert body.predictions.step_time_ns == best
        assert body.certificate.lower_bound == best
    less = request_.model_copy(update={"limits": Limits(memory_bytes=peaks[0] - 1)})
    infeasibility = make_plan(less).body.infeasibility
    assert infeasibility is not None
    assert infeasibility.needed_bytes == peaks[0]


def test_units_without_backward_are_never_prefetched_there() -> None:
    request = ODD["an embedding without backward"]
    for region in regions(request):
        for setting in region.settings:
            item = region.open(setting)
            units = item.unpack(request, (0,) * item.problem.num_decisions).units
            assert all("embed" not in unit.backward_prefetch for unit in units)
