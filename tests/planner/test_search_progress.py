"""What a search tells while it runs: no bound before all regions are known that may hold a plan."""

import pytest

from benchmarks.search_requests import random_request
from planner.found import Progress
from planner.schema import ClientFeature, Limits, PlanRequest
from planner.search import search
from planner.space.opened import Goal
from solver.schedule.problem import Aim

SEEDS = (3, 6, 12, 14)


def only_offloaded(seed: int) -> PlanRequest:
    """The request with a byte less than plans on the device need."""
    request = random_request(seed)
    on_device = tuple(
        feature
        for feature in ClientFeature
        if feature.value not in ("offload", "optimizer_offload", "optimizer_nvme")
    )
    least = search(
        request.model_copy(update={"client_features": on_device}), goal=Goal(aim=Aim.MEMORY, is_budgeted=False)
    )
    limits = Limits(memory_bytes=least.lower_bound - 1)
    return request.model_copy(update={"client_features": tuple(ClientFeature), "limits": limits})


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_that_offload_are_bounded_once_all_are_known(seed: int) -> None:
    told: list[Progress] = []
    found = search(only_offloaded(seed), told.append)
    assert found.best is not None
    assert found.best.candidate.offload.most or found.best.candidate.activation_offload
    first = next(progress for progress in told if progress.incumbent_ns is not None)
    assert first.message.startswith("looked at")
    assert first.bound_ns is None
    bounds = [progress.bound_ns for progress in told if progress.bound_ns is not None]
    assert bounds == sorted(bounds)
    assert bounds[-1] <= found.lower_bound
