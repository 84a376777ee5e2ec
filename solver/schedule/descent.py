"""Local search: one or two changes at a time, those first that gain most if what each does alone adds up.

It also starts from assignments that keep no budget, such as an optimum of the relaxation as placed: what brings
these back within it at the least loss often ends at better assignments than what was feasible from the beginning.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from solver.schedule.patterns import with_values
from solver.schedule.problem import Assignment, Evaluation, Problem

MAX_PAIRS = 200
"""Pairs that are evaluated in one step."""
Evaluate = Callable[[Assignment], Evaluation | None]
"""None once enough was evaluated."""


class Change(NamedTuple):
    """One decision changed, and what the assignment with it costs; a decision below 0 changes nothing."""

    decision: int
    value: int
    evaluation: Evaluation


def descend(
    problem: Problem, start: Assignment, evaluate: Evaluate, *, max_changes: int, taken: Collection[int] = ()
) -> None:
    """Step by step, as long as that helps; whoever evaluates keeps the best.

    Args:
        problem: what is solved.
        start: any assignment.
        evaluate: of an assignment.
        max_changes: single changes that are looked at in one step; of more, evenly many of each kind.
        taken: decisions that are not changed.
    """
    assignment: Assignment | None = start
    number = 0
    while assignment is not None:
        assignment = _step(problem, assignment, evaluate, _singles(problem, assignment, taken, max_changes, number))
        number += 1


def _step(
    problem: Problem, assignment: Assignment, evaluate: Evaluate, singles: Sequence[tuple[int, int]]
) -> Assignment | None:
    """What follows an assignment; None where nothing better was found."""
    base = evaluate(assignment)
    if base is None:
        return None
    changes = [Change(-1, 0, base)]
    for decision, value in singles:
        evaluation = evaluate(with_values(assignment, {decision: value}))
        if evaluation is None:
            return None
        changes.append(Change(decision, value, evaluation))
    for moves in _promising(problem, base, changes):
        moved = with_values(assignment, moves)
        evaluation = evaluate(moved)
        if evaluation is None:
            return None
        if problem.is_feasible(evaluation) and _improves(problem, evaluation, base):
            return moved
    repaired = with_values(assignment, _repair(problem, base, changes))
    evaluation = evaluate(repaired)
    return None if evaluation is None or not _improves(problem, evaluation, base) else repaired


def _improves(problem: Problem, evaluation: Evaluation, base: Evaluation) -> bool:
    return (problem.violation(evaluation), problem.value(evaluation)) < (
        problem.violation(base),
        problem.value(base),
    )


def _singles(
    problem: Problem, assignment: Assignment, taken: Collection[int], max_changes: int, number: int
) -> list[tuple[int, int]]:
    """Decisions with other values; of many, each step looks at others of the same family and values."""
    family = {decision: one.name for one in problem.families for decision in one.decisions}
    alike: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for decision, size in enumerate(problem.num_values):
        for value in () if decision in taken else range(size):
            if value != assignment[decision]:
                alike[family.get(decision), assignment[decision], value].append((decision, value))
    every = -(-sum(map(len, alike.values())) // max_changes) or 1
    return sorted(
        single for singles in alike.values() for single in singles[number % min(every, len(singles)) :: every]
    )


def _promising(problem: Problem, base: Evaluation, changes: Sequence[Change]) -> Iterator[dict[int, int]]:
    """Pairs that should keep budget and deadline, the largest gains first; losses only to come back within them."""
    decisions = np.array([change.decision for change in changes])
    gains = np.array([problem.value(base) - problem.value(change.evaluation) for change in changes])
    needed = np.array([change.evaluation.needed - base.needed for change in changes])
    times = np.array([change.evaluation.makespan - base.makespan for change in changes])
    gain = gains[:, None] + gains[None, :]
    helps = np.triu(decisions[:, None] != decisions[None, :])
    if problem.is_feasible(base):
        helps &= gain > 0
    if problem.budget is not None:
        helps &= needed[:, None] + needed[None, :] <= problem.budget - base.needed
    if problem.deadline is not None:
        helps &= times[:, None] + times[None, :] <= problem.deadline - base.makespan
    firsts, seconds = np.nonzero(helps)
    for place in np.argsort(-gain[firsts, seconds], kind="stable")[:MAX_PAIRS]:
        pair = (changes[firsts[place]], changes[seconds[place]])
        yield {change.decision: change.value for change in pair if change.decision >= 0}


def _repair(problem: Problem, base: Evaluation, changes: Sequence[Change]) -> dict[int, int]:
    """As many changes as should bring an assignment back within budget or deadline, the cheapest ones first."""
    over_bytes, over_ns = problem.violation(base)
    left = over_bytes or over_ns
    freed = [
        base.needed - change.evaluation.needed if over_bytes else base.makespan - change.evaluation.makespan
        for change in changes
    ]
    useful = [place for place, amount in enumerate(freed) if amount > 0]
    useful.sort(key=lambda place: (problem.value(changes[place].evaluation) - problem.value(base)) / freed[place])
    moves: dict[int, int] = {}
    for place in useful:
        if left > 0 and changes[place].decision not in moves:
            moves[changes[place].decision] = changes[place].value
            left -= freed[place]
    return moves
