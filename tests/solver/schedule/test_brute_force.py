"""The solver against brute force on random small problems."""

from dataclasses import replace

import pytest

from solver.schedule.bounds import StaticBounds
from solver.schedule.evaluate import Evaluator
from solver.schedule.heuristic import Heuristic
from solver.schedule.problem import Aim
from solver.schedule.search import Limits, prove
from tests.solver.schedule.random_problems import assignments, random_problem, reference

NUM_PROBLEMS = 320


@pytest.mark.parametrize("block", range(8))
def test_optimum_equals_brute_force(block: int) -> None:
    for seed in range(block * NUM_PROBLEMS // 8, (block + 1) * NUM_PROBLEMS // 8):
        problem = random_problem(seed)
        evaluator = Evaluator(problem)
        feasible = []
        for assignment in assignments(problem):
            evaluation = evaluator.evaluate(assignment)
            assert evaluation == reference(problem, assignment), (seed, assignment)
            if problem.budget is None or evaluation.needed <= problem.budget:
                feasible.append(evaluation.makespan)
        result = prove(problem, (0,) * problem.num_decisions, Limits(deterministic_time=20))
        if not feasible:
            assert result.status == "infeasible", seed
            continue
        assert result.status == "optimal", seed
        assert result.evaluation is not None
        assert result.evaluation.makespan == min(feasible) == result.lower_bound, seed
        assert problem.budget is None or result.evaluation.needed <= problem.budget, seed
        least = (one.count * StaticBounds(one.steps, problem.final_chain).makespan for one in problem.rounds)
        assert sum(least) <= min(feasible), seed


@pytest.mark.parametrize("seed", range(80))
def test_least_memory_equals_brute_force(seed: int) -> None:
    problem = replace(random_problem(1000 + seed), budget=None, aim=Aim.MEMORY)
    evaluations = [reference(problem, assignment) for assignment in assignments(problem)]
    makespans = sorted(one.makespan for one in evaluations)
    deadline = None if seed % 4 == 0 else makespans[seed * 7 % len(makespans)] - (seed % 20 == 1)
    problem = replace(problem, deadline=deadline)
    fitting = [one.needed for one in evaluations if problem.is_feasible(one)]
    result = prove(problem, (0,) * problem.num_decisions, Limits(deterministic_time=20))
    heuristic = Heuristic(problem)
    heuristic.guide(gap=0.0)
    if not fitting:
        assert result.status == "infeasible"
        assert not heuristic.feasible
        return
    assert result.evaluation is not None
    assert result.evaluation.needed == min(fitting) == result.lower_bound
    assert heuristic.lower_bound <= min(fitting)
    assert not heuristic.is_infeasible


@pytest.mark.parametrize("seed", range(40))
def test_cutoff_below_the_optimum_is_infeasible_and_at_it_is_found(seed: int) -> None:
    problem = random_problem(2000 + 4 * seed)
    best = min(Evaluator(problem).evaluate(assignment).makespan for assignment in assignments(problem))
    hint = (0,) * problem.num_decisions
    found = prove(problem, hint, Limits(deterministic_time=20), cutoff=best)
    assert found.evaluation is not None
    assert found.evaluation.makespan == best
    if best:
        below = prove(problem, hint, Limits(deterministic_time=20), cutoff=best - 1)
        assert below.status == "infeasible"


@pytest.mark.parametrize("block", range(8))
def test_relaxation_bounds_and_heuristic_keeps_the_budget(block: int) -> None:
    """Bounds of the class relaxation, with all the rows that the heuristic learns, against brute force."""
    for seed in range(3000 + 40 * block, 3000 + 40 * (block + 1)):
        problem = random_problem(seed)
        heuristic = Heuristic(problem)
        heuristic.guide(gap=0.0)
        heuristic.sharpen(gap=0.0)
        heuristic.improve(max_evaluations=60)
        evaluations = [reference(problem, assignment) for assignment in assignments(problem)]
        fitting = [one.makespan for one in evaluations if problem.budget is None or one.needed <= problem.budget]
        assert heuristic.evaluation == reference(problem, heuristic.best)
        if heuristic.is_infeasible:
            assert not fitting, seed
        if fitting:
            assert heuristic.lower_bound <= min(fitting), seed
        if heuristic.feasible:
            assert heuristic.evaluation.makespan in fitting
