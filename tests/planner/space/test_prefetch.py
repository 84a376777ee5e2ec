"""Prefetch in forward as deep as gathers fit: what it takes, and that no other depths of single units do better."""

from random import Random

import pytest

from benchmarks.search_checks import listed_regions
from benchmarks.search_choices import narrowed
from benchmarks.search_requests import random_request
from benchmarks.unit_choices import costed, losses, plans
from planner.plan import make_plan
from planner.program.events import Stream
from planner.schema import FixedChoice, HostRuns, InconsistentRequest, PlanRequest
from planner.space.knobs import forward_prefetch
from planner.space.prefetch import DEEPEST
from planner.space.regions import Region
from planner.space.settings import Setting
from tests.planner.factories import run_by_host

_GATHERS = list(Stream).index(Stream.COPY_IN)
SEEDS = range(12)
REGIONS = 6


def fitted_regions(request: PlanRequest, rng: Random) -> list[Region]:
    """Some with limits, that gather into buffers of their own, and nothing from the host."""
    found = [
        region
        for region in listed_regions(request)
        if any(setting.gather_limit for setting in region.settings)
        and not (region.is_family or any(region.candidate.on_host) or any(region.candidate.aliased))
    ]
    return rng.sample(found, min(REGIONS, len(found)))


def pool_bytes(region: Region, setting: Setting) -> int:
    """Most that gathers hold where every unit that can stays gathered, so that backward gathers little."""
    item = region.open(setting)
    kept = tuple(
        one.labels.index("False") if "False" in one.labels and one.family == "reshard" else 0
        for one in item.decisions
    )
    return item.heuristic.evaluate(kept).pool_peaks[_GATHERS]


@pytest.mark.parametrize("host_runs", [HostRuns.NOTHING, HostRuns.KERNELS])
def test_gathers_keep_the_limit_and_the_next_one_would_not(host_runs: HostRuns) -> None:
    """The least limit is what FSDP2's own prefetch takes, and less room is needed for no list that is longer."""
    seen = 0
    for seed in SEEDS:
        request = random_request(seed).model_copy(update={"client_features": None})
        request = request if host_runs is HostRuns.NOTHING else run_by_host(request, host_runs)
        for region in fitted_regions(request, Random(seed)):
            for setting in (one for one in region.settings if one.gather_limit and one.reduce_buffers == 1):
                assert setting.gather_limit
                unlimited = pool_bytes(region, Setting(forward_prefetch=DEEPEST))
                assert pool_bytes(region, setting) <= setting.gather_limit.size_bytes < unlimited, region.label
                seen += 1
            item = region.open(Setting())
            least, *_ = forward_prefetch(item.candidate, item.inputs.sizes, item.costs).limits()
            assert pool_bytes(region, Setting()) <= least.size_bytes
    assert seen > 10


@pytest.mark.parametrize("seed", range(8))
def test_no_depths_of_single_units_are_faster_within_any_budget(seed: int) -> None:
    request = random_request(seed).model_copy(update={"client_features": None})
    some = [
        (item, decisions)
        for item, decisions in plans(narrowed(request, Random(seed), max_plans=16))
        if not any(item.candidate.aliased)
    ]
    assert not any(losses(costed("forward", request, some[:4])))


def test_a_person_may_ask_for_it() -> None:
    request = next(
        found
        for seed in SEEDS
        for found in [random_request(seed).model_copy(update={"client_features": None})]
        if fitted_regions(found, Random(seed))
    )
    fixed = request.model_copy(update={"fixed": (FixedChoice(knob="forward_prefetch", value="fitted"),)})
    depths = {len(unit.forward_prefetch) for unit in make_plan(fixed).body.decisions.units}
    assert {1, DEEPEST} <= depths
    wrong = request.model_copy(update={"fixed": (FixedChoice(knob="forward_prefetch", value="fits"),)})
    with pytest.raises(InconsistentRequest, match=r"forward_prefetch = 'fits' is not possible"):
        make_plan(wrong)
