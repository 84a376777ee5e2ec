"""Among nearly equal assignments take the one that a person can read: regular patterns, defaults where free."""

from collections.abc import Iterator
from itertools import pairwise

from solver.schedule.evaluate import Evaluator
from solver.schedule.patterns import SPREADS, with_values
from solver.schedule.problem import Assignment, Evaluation, Problem

MAX_SWEEPS = 4


def tidy(problem: Problem, assignment: Assignment, *, slack: int) -> Assignment:
    """The most regular feasible assignment found whose value is at most `slack` above the given one's.

    Value 0 of each decision is its default. Disorder is counted as decisions off their default plus, twice, changes
    between neighbours of a family.
    """
    evaluator = Evaluator(problem)
    limit = problem.value(evaluator.evaluate(assignment)) + slack
    best = assignment

    def acceptable(evaluation: Evaluation) -> bool:
        return problem.value(evaluation) <= limit and problem.is_feasible(evaluation)

    for _ in range(MAX_SWEEPS):
        before = best
        for variant in _variants(problem, best):
            if disorder(problem, variant) < disorder(problem, best) and acceptable(evaluator.evaluate(variant)):
                best = variant
        if best == before:
            break
    return best


def disorder(problem: Problem, assignment: Assignment) -> int:
    """How hard an assignment is to read; 0 when every decision has its default."""
    score = 0
    for family in problem.families:
        values = [assignment[decision] for decision in family.decisions]
        score += sum(value != 0 for value in values)
        score += 2 * sum(first != second for first, second in pairwise(values))
    return score


def _variants(problem: Problem, assignment: Assignment) -> Iterator[Assignment]:
    for family in problem.families:
        yield with_values(assignment, dict.fromkeys(family.decisions, 0))
        for size in sorted({problem.num_values[decision] for decision in family.decisions}):
            alike = tuple(decision for decision in family.decisions if problem.num_values[decision] == size)
            yield from _regular(alike, assignment)
    for decision in range(problem.num_decisions):
        if assignment[decision]:
            yield with_values(assignment, {decision: 0})


def _regular(alike: tuple[int, ...], assignment: Assignment) -> Iterator[Assignment]:
    """The same number of decisions at each value, placed by a pattern; all have as many values."""
    values = [assignment[decision] for decision in alike]
    counts = [values.count(value) for value in range(max(values, default=0) + 1)]
    for spread in SPREADS:
        yield with_values(assignment, dict(zip(alike, spread(counts), strict=True)))
