"""A search that starts from an earlier plan: it is the first plan known, and costs no quality."""

import json
import subprocess
import sys

import pytest

from benchmarks.search_requests import random_request
from planner.found import Progress
from planner.plan import make_plan
from planner.schema import Decisions, Limits, Plan, PlanRequest, UnsupportedField
from planner.simulate import predict

SEEDS = range(10)


def _changed(request: PlanRequest, **fields: object) -> PlanRequest:
    group = request.cluster.node_groups[0].model_copy(update=fields)
    cluster = request.cluster.model_copy(update={"node_groups": (group, *request.cluster.node_groups[1:])})
    return request.model_copy(update={"cluster": cluster})


def _warm(request: PlanRequest, earlier: Plan) -> PlanRequest:
    return request.model_copy(update={"warm_start": earlier.envelope.plan_id})


def _decided(plan: Plan) -> Decisions:
    assert plan.body.decisions is not None
    return plan.body.decisions


@pytest.mark.parametrize("seed", SEEDS)
def test_the_earlier_plan_is_the_first_one_and_no_worse_is_found(seed: int) -> None:
    request = random_request(seed)
    cold = make_plan(request)
    if cold.body.outcome == "infeasible":
        assert make_plan(request).body.outcome == "infeasible"
        return
    told: list[Progress] = []
    warm = make_plan(_warm(request, cold), on_progress=told.append, warm_start=_decided(cold))
    assert warm.body.certificate is not None
    assert cold.body.certificate is not None
    bound = max(warm.body.certificate.lower_bound, cold.body.certificate.lower_bound)
    gap = request.search.gap
    assert warm.body.certificate.value * (1 - gap) <= cold.body.certificate.value
    assert warm.body.certificate.value >= bound
    values = [p.incumbent_ns or p.incumbent_bytes for p in told if p.incumbent_ns or p.incumbent_bytes]
    if any(unit.parameter_tier != "device" for unit in _decided(cold).units) or "offload" in str(_decided(cold)):
        return
    assert values[0] == cold.body.certificate.value
    assert warm.body.inputs.request == _warm(request, cold).content_hash() != cold.body.inputs.request


def test_on_fewer_ranks_and_with_less_memory() -> None:
    request = random_request(3)
    earlier = make_plan(request)
    nodes = request.cluster.node_groups[0]
    assert earlier.body.predictions is not None
    tighter = request.model_copy(
        update={"limits": Limits(memory_bytes=earlier.body.predictions.peak.reserved_bytes - 1)}
    )
    slower = _changed(request, devices_per_node=max(1, nodes.devices_per_node // 2))
    for changed in (tighter, slower):
        cold = make_plan(changed).body
        warm = make_plan(_warm(changed, earlier), warm_start=_decided(earlier)).body
        assert warm.outcome == cold.outcome
        if warm.certificate is not None and cold.certificate is not None:
            assert warm.certificate.value * (1 - request.search.gap) <= cold.certificate.value
            assert predict(changed, warm.decisions).step_time_ns == warm.predictions.step_time_ns


def test_the_same_warm_start_gives_the_same_plan() -> None:
    request = random_request(4)
    earlier = make_plan(request)
    bodies = {
        make_plan(_warm(request, earlier), warm_start=_decided(earlier)).body.canonical_bytes() for _ in range(2)
    }
    assert len(bodies) == 1


def test_a_name_without_decisions_is_refused() -> None:
    request = random_request(4)
    with pytest.raises(UnsupportedField, match="warm_start"):
        make_plan(_warm(request, make_plan(request)))


def test_the_process_takes_decisions_with_the_request() -> None:
    request = random_request(4)
    earlier = make_plan(request)
    warm = _warm(request, earlier)
    text = json.dumps(
        {"warm_start": _decided(earlier).model_dump(mode="json"), "request": warm.model_dump(mode="json")},
        separators=(",", ":"),
    )
    done = subprocess.run(
        [sys.executable, "-m", "planner"], input=text, capture_output=True, text=True, check=True, timeout=300
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["event"] == "plan"
    assert Plan.from_object(told["plan"]).body.inputs.request == warm.content_hash()
