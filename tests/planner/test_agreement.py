"""Program and replay against the independent checker, on random requests and decisions."""

import random
from collections.abc import Callable

import pytest

from planner.check import recompute
from planner.schema import Decisions, HostRuns, InconsistentRequest, PlanRequest
from planner.simulate import predict
from tests.planner.factories import run_by_host
from tests.planner.random_knobs import random_case, random_nested_case
from tests.planner.random_layouts import with_layouts
from tests.planner.random_requests import random_decisions, random_request

Case = Callable[[int], tuple[PlanRequest, Decisions]]
SEEDS_PER_TEST = 60


def _plain(seed: int) -> tuple[PlanRequest, Decisions]:
    request = random_request(seed)
    return request, random_decisions(request, seed + 1)


def _ragged(seed: int) -> tuple[PlanRequest, Decisions]:
    request, decisions = (random_case if seed % 2 else random_nested_case)(seed)
    return request, with_layouts(request, decisions, random.Random(seed))


@pytest.mark.parametrize("host_runs", [HostRuns.KERNELS, HostRuns.EVERYTHING])
@pytest.mark.parametrize("case", [_plain, random_case, random_nested_case, _ragged])
def test_replay_equals_the_checker_where_the_issuing_thread_computes(case: Case, host_runs: HostRuns) -> None:
    cases = [(*case(seed), seed) for seed in range(1000, 1000 + SEEDS_PER_TEST)]
    assert sum(_agrees(run_by_host(request, host_runs), *rest) for request, *rest in cases) > SEEDS_PER_TEST // 2


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize(
    "case",
    [_plain, random_case, random_nested_case, _ragged],
    ids=["usual", "every knob", "nested", "ragged"],
)
def test_replay_equals_the_checker(case: Case, block: int) -> None:
    seeds = range(block * SEEDS_PER_TEST, (block + 1) * SEEDS_PER_TEST)
    assert sum(_agrees(*case(seed), seed) for seed in seeds) > SEEDS_PER_TEST // 2


def _agrees(request: PlanRequest, decisions: Decisions, seed: int) -> bool:
    """Whether there was anything to compare."""
    try:
        predicted = predict(request, decisions)
    except InconsistentRequest:
        return False
    expected = recompute(request, decisions)
    assert predicted.step_time_ns == expected.step_time_ns, seed
    assert {k: v for k, v in predicted.peak.pools_bytes.items() if v} == {
        str(k): v for k, v in expected.pools_bytes.items() if v
    }, seed
    assert predicted.peak.allocated_bytes == expected.allocated_bytes, seed
    assert predicted.peak.reserved_bytes == expected.reserved_bytes, seed
    assert predicted.num_all_gathers == expected.num_all_gathers, seed
    assert predicted.num_reduce_scatters == expected.num_reduce_scatters, seed
    assert predicted.num_all_reduces == expected.num_all_reduces, seed
    breakdown = predicted.breakdown
    parts = breakdown.model_dump()
    assert breakdown.total_ns == predicted.step_time_ns == sum(parts.values()) - breakdown.total_ns, seed
    assert sum(predicted.peak.by_category_bytes.values()) == predicted.peak.allocated_bytes, seed
    return True
