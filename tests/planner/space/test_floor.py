"""No plan is faster than the floor of its global choice within a budget that some plan just keeps."""

from dataclasses import replace
from random import Random

import pytest

from benchmarks.search_checks import all_regions
from benchmarks.search_requests import random_request
from planner.space.candidate import num_micro_batches
from planner.space.floor import floor_bytes, floor_ns
from solver.schedule.heuristic import Heuristic

SEEDS = range(40)
REGIONS, ASSIGNMENTS = 12, 2


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_beats_the_floor_of_what_it_needs(seed: int) -> None:
    rng, request = Random(seed), random_request(seed)
    regions = all_regions(request)
    for region in rng.sample(regions, min(REGIONS, len(regions))):
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
