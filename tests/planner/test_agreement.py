"""Program and replay against the independent checker, on random requests and decisions."""

import pytest

from planner.check import recompute
from planner.schema import InconsistentRequest
from planner.simulate import predict
from tests.planner.random_requests import random_decisions, random_request


@pytest.mark.parametrize("block", range(10))
def test_replay_equals_the_checker(block: int) -> None:
    compared = 0
    for seed in range(block * 60, (block + 1) * 60):
        request = random_request(seed)
        decisions = random_decisions(request, seed + 1)
        try:
            predicted = predict(request, decisions)
        except InconsistentRequest:
            continue
        compared += 1
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
    assert compared > 40
