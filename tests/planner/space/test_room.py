"""What a floor counts of memory is there in every plan, at some moment of every micro-batch."""

from random import Random
from typing import TypeVar

import pytest

from benchmarks.search_checks import any_member, listed_regions
from benchmarks.search_requests import random_request
from planner.program.choices import Choice
from planner.program.inputs import micro_batches
from planner.program.step import Knobs
from planner.space.candidate import num_micro_batches
from planner.space.opened import OpenCandidate
from planner.space.room import gathered_bytes, kept_bytes, moments, options_of, other_pools_bytes, resident_bytes
from solver.schedule.problem import Assignment

Value = TypeVar("Value")
SEEDS = range(30)
REGIONS, ASSIGNMENTS = 12, 4


def value(choice: Choice[Value], assignment: Assignment) -> Value:
    return next(option for option, when in choice if all(assignment[p.decision] == p.value for p in when))


def kept(item: OpenCandidate, assignment: Assignment) -> int:
    kinds, calls = item.inputs.partition.model.kinds, item.inputs.partition.model.calls
    chosen = {call: value(choice, assignment) for call, choice in item.knobs.activation.items()}
    return sum(
        kept_bytes(item.inputs, kinds[entry.kind], chosen.get(call, options_of(item.knobs, call)[0]))
        for call, entry in enumerate(calls)
    )


def gathered(item: OpenCandidate, assignment: Assignment) -> int:
    parts, knobs = item.inputs.partition, item.knobs
    return sum(
        gathered_bytes(
            item.inputs.sizes[unit].gathered, value(knobs.reshard[unit], assignment), knobs.shard(unit), item.costs
        )
        for unit in parts.with_backward - {0}
        if parts.units[unit].parameters
    )


def places(item: OpenCandidate, request_micro_batches: int) -> list[Knobs]:
    return [place for place, _ in micro_batches(item.knobs, request_micro_batches)]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_needs_less_than_its_moments(seed: int) -> None:
    rng, request = Random(seed), random_request(seed)
    listed = listed_regions(request)
    for family in rng.sample(listed, min(REGIONS, len(listed))):
        region = any_member(family, rng)
        item = region.open(rng.choice(region.settings))
        each = places(item, num_micro_batches(request, region.candidate.training.micro_batch))
        beside = other_pools_bytes(item.inputs, each, item.costs)
        for _ in range(ASSIGNMENTS):
            assignment = tuple(rng.randrange(num) for num in item.problem.num_values)
            needed = item.heuristic.evaluate(assignment).needed
            for place in each:
                for moment in moments(item.inputs, place, item.costs):
                    counted = moment.needed(kept(item, assignment), gathered(item, assignment))
                    assert beside + resident_bytes(item.inputs, place) + counted <= needed, (region.label, moment)
