"""Prices against all assignments of the chosen global choice."""

from dataclasses import replace
from itertools import product

import pytest

from planner.found import Found
from planner.plan import make_plan
from planner.prices import shadow_values, why_not
from planner.schema import Limits, Objective, PlanRequest
from planner.search import search
from solver.schedule.problem import Evaluation, Problem
from tests.planner.random_requests import random_request
from tests.planner.test_plan import EXACT, FEATURES

SEEDS = range(8)


def evaluations(found: Found) -> dict[tuple[int, ...], Evaluation]:
    """Every assignment of the chosen global choice."""
    assert found.best is not None
    item = found.best
    sizes = item.problem.num_values
    return {values: item.heuristic.evaluate(values) for values in product(*map(range, sizes))}


def least(problem: Problem, among: list[Evaluation]) -> int | None:
    return min((problem.value(one) for one in among if problem.is_feasible(one)), default=None)


def tight_request(seed: int, objective: Objective) -> PlanRequest:
    """Half-way between the leanest plan and the fastest."""
    request = random_request(seed, num_blocks=2, num_devices=2 if seed % 3 else 4)
    features = (*FEATURES[seed % len(FEATURES)], *FEATURES[0])
    request = request.model_copy(update={"search": EXACT, "client_features": features})
    ends = []
    for end in (Objective.STEP_TIME, Objective.PEAK_MEMORY):
        predictions = make_plan(request.model_copy(update={"objective": end})).body.predictions
        assert predictions is not None
        ends.append((predictions.step_time_ns, predictions.peak.reserved_bytes))
    (fast_ns, most), (slow_ns, fewest) = ends
    limits = (
        Limits(memory_bytes=(most + fewest) // 2)
        if objective is Objective.STEP_TIME
        else Limits(step_time_ns=(fast_ns + slow_ns) // 2)
    )
    return request.model_copy(update={"objective": objective, "limits": limits})


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_looser_limit_saves_is_between_the_two_amounts(seed: int, objective: Objective) -> None:
    found = search(tight_request(seed, objective))
    assert found.best is not None
    assert found.assignment is not None
    problem, among = found.best.problem, list(evaluations(found).values())
    now = least(problem, among)
    assert now is not None
    values = shadow_values(found.best, found.assignment, gap=0.0)
    assert len(values) == 2
    for one in values:
        if objective is Objective.STEP_TIME:
            assert problem.budget is not None
            assert one.limit == "memory_bytes"
            looser = replace(problem, budget=problem.budget + one.more)
        else:
            assert problem.deadline is not None
            assert one.limit == "step_time_ns"
            looser = replace(problem, deadline=problem.deadline + one.more)
        then = least(looser, among)
        assert then is not None
        assert one.saves_at_least <= now - then <= one.saves_at_most


def test_memory_is_loosened_by_powers_of_two_near_a_32nd_and_an_8th_of_the_budget() -> None:
    request = tight_request(1, Objective.STEP_TIME).model_copy(update={"limits": Limits(memory_bytes=100 * 2**20)})
    found = search(request)
    assert found.best is not None
    assert found.assignment is not None
    small, large = shadow_values(found.best, found.assignment, gap=0.0)
    assert (small.more, large.more) == (2 * 2**20, 8 * 2**20)
    assert (small.saves_at_least, large.saves_at_least) == (0, 0)


def test_least_memory_without_a_step_time_has_no_limit_to_loosen() -> None:
    request = tight_request(1, Objective.PEAK_MEMORY).model_copy(update={"limits": Limits()})
    assert make_plan(request).body.reasons.shadow == ()


FLIPS = {
    "no block is checkpointed": ("activation", "none"),
    "every block is checkpointed": ("activation", "full"),
    "no unit reshards after forward": ("reshard", "False"),
    "every unit reshards after forward": ("reshard", "True"),
}


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_changed_decision_costs_what_its_best_plan_costs(seed: int, objective: Objective) -> None:
    found = search(tight_request(seed, objective))
    assert found.best is not None
    assert found.assignment is not None
    item, among = found.best, evaluations(found)
    told = {other.change: other for other in why_not(found, gap=0.0)}
    families = {family.name: family.decisions for family in item.problem.families}
    for words, (family, label) in FLIPS.items():
        members = {
            decision: item.decisions[decision].labels.index(label)
            for decision in families.get(family, ())
            if label in item.decisions[decision].labels
        }
        is_chosen = all(found.assignment[decision] == value for decision, value in members.items())
        assert (words in told) == (not is_chosen)
        if is_chosen:
            continue
        flipped = [one for values, one in among.items() if all(values[d] == v for d, v in members.items())]
        best = least(item.problem, flipped)
        assert told[words].fits == (best is not None)
        if best is not None:
            value = told[words].step_time_ns if objective is Objective.STEP_TIME else told[words].reserved_bytes
            assert value == item.value(best)


def test_a_plan_tells_both() -> None:
    reasons = make_plan(tight_request(1, Objective.STEP_TIME)).body.reasons
    assert len(reasons.shadow) == 2
    assert {other.change for other in reasons.why_not} & FLIPS.keys()
