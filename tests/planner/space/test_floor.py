"""No plan is faster than the floor of its global choice within a budget that some plan just keeps."""

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from benchmarks.search_checks import any_member, listed_regions
from benchmarks.search_requests import random_request
from planner.schema import HostRuns, PlanRequest
from planner.space.candidate import num_micro_batches
from planner.space.fixed import NoValueLeft
from planner.space.floor import floor_bytes, floor_ns
from planner.space.regions import Region, regions
from planner.space.sharding import NoCostOnHost
from solver.schedule.heuristic import Heuristic
from tests.planner.factories import run_by_host

SEEDS = range(40)
REGIONS, ASSIGNMENTS = 12, 2


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_beats_the_floor_of_what_it_needs(seed: int) -> None:
    check_floors(Random(seed), random_request(seed))


@pytest.mark.parametrize("seed", range(40, 48))
def test_nor_where_the_issuing_thread_computes(seed: int) -> None:
    host_runs = HostRuns.KERNELS if seed % 4 else HostRuns.EVERYTHING
    check_floors(Random(seed), run_by_host(random_request(seed), host_runs))


def check_floors(rng: Random, request: PlanRequest) -> None:
    listed = listed_regions(request)
    for family in rng.sample(listed, min(REGIONS, len(listed))):
        region = any_member(family, rng)
        item = region.open(rng.choice(region.settings))
        num = num_micro_batches(request, region.candidate.training.micro_batch)
        least = floor_bytes(item.inputs, item.knobs, item.costs, num)
        for _ in range(ASSIGNMENTS):
            assignment = tuple(rng.randrange(num) for num in item.problem.num_values)
            found = item.heuristic.evaluate(assignment)
            assert least <= found.peak, region.label
            floor = floor_ns(item.inputs, item.knobs, item.costs, num, found.needed)
            assert floor is not None, region.label
            within = Heuristic(replace(item.problem, budget=found.needed))
            within.offer(assignment)
            within.guide(gap=0.0)
            assert floor <= within.evaluation.makespan <= found.makespan, region.label


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_beats_the_floor_of_any_family_that_has_it(seed: int) -> None:
    """Down from all sets of units in host memory to one."""
    rng, request = Random(seed), random_request(seed)
    with suppress(NoValueLeft, NoCostOnHost):
        families = [one for one in regions(request, on_host=True) if one.is_family]
        for region in rng.sample(families, min(REGIONS, len(families))):
            path = down(region, rng)
            item = path[-1].open(rng.choice(path[-1].settings))
            assignment = tuple(rng.randrange(num) for num in item.problem.num_values)
            found = item.heuristic.evaluate(assignment)
            num = num_micro_batches(request, region.candidate.training.micro_batch)
            for family in path:
                offload, opening = family.candidate.offload, family.opening
                certain = tuple(
                    flag and unit in offload.least for unit, flag in enumerate(family.candidate.on_host)
                )
                knobs = replace(item.knobs, on_host=family.candidate.on_host)
                within = opening.inputs, knobs, item.costs, num
                floor = floor_ns(*within, found.needed, on_host=certain)
                assert floor is not None, family.label
                assert floor <= found.makespan, family.label
                assert floor_bytes(*within) <= found.peak, family.label
                assert opening.optimizer_ns <= item.optimizer_ns, family.label


@pytest.mark.parametrize("seed", range(12))
def test_nor_its_relaxation(seed: int) -> None:
    """Times of its smallest set with the memory of its largest, by classes and by longest paths."""
    rng, request = Random(seed), random_request(seed)
    with suppress(NoValueLeft, NoCostOnHost):
        families = [one for one in regions(request, on_host=True) if one.is_family]
        for region in rng.sample(families, min(REGIONS // 2, len(families))):
            path = down(region, rng)
            members = path[-1].settings
            item = path[-1].open(rng.choice(members))
            assignment = tuple(rng.randrange(num) for num in item.problem.num_values)
            found = item.heuristic.evaluate(assignment)
            for family in path[:-1]:
                relaxed = family.opening.relaxed(family.candidate, members)
                within = Heuristic(replace(relaxed.problem, budget=found.needed))
                within.guide(gap=0.0)
                assert within.lower_bound <= found.makespan, family.label
                within.sharpen(gap=0.0)
                assert not within.is_infeasible, family.label
                assert within.lower_bound <= found.makespan, family.label


def down(region: Region, rng: Random) -> list[Region]:
    """A family, and what is drawn of its parts down to one set."""
    path = [region]
    while path[-1].is_family:
        path.append(rng.choice(list(path[-1].parts())))
    return path
