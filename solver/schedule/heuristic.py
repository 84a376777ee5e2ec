"""Good assignments fast: optima of the class relaxation placed by patterns, then local search on the evaluator."""

import random
from collections.abc import Iterator, Mapping
from itertools import product

from solver.schedule.evaluate import Evaluator
from solver.schedule.patterns import placements, with_values
from solver.schedule.problem import Assignment, Evaluation, Problem
from solver.schedule.relaxation import Relaxation, references

MAX_CUTTING_ROUNDS = 12
NEAR = (1, -1, 2, -2)
"""Distances at which local search moves and trades values."""


class Heuristic:
    """Keeps the best assignment seen; budget and deadline may be exceeded only while nothing keeps both."""

    def __init__(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        like: "Heuristic | None" = None,
        fixed: Mapping[int, int] | None = None,
    ) -> None:
        """Start from the default of every decision.

        Args:
            problem: what is solved.
            seed: of the order of local search.
            like: of a problem that differs in budget, deadline and aim alone; its rows are taken over.
            fixed: decisions that are taken.
        """
        self._problem = problem
        self._evaluator: Evaluator = like._evaluator if like else Evaluator(problem)
        self._random = random.Random(seed)
        self._relaxation: Relaxation | None = like.relaxation.of(problem) if like else None
        self._fixed = fixed or {}
        self._seen: dict[Assignment, Evaluation] = {}
        self.num_evaluations = 0
        self.best: Assignment = with_values((0,) * problem.num_decisions, self._fixed)
        self.evaluation: Evaluation = self._evaluator.evaluate(self.best)
        self.lower_bound = 0
        """No feasible assignment has a smaller value of what is minimised."""
        self.is_infeasible = False
        """No assignment keeps budget and deadline."""

    @property
    def feasible(self) -> bool:
        """Whether the best assignment keeps budget and deadline."""
        return self._problem.is_feasible(self.evaluation)

    @property
    def value(self) -> int:
        """What is minimised, of the best assignment."""
        return self._problem.value(self.evaluation)

    @property
    def relaxation(self) -> Relaxation:
        """The class relaxation with the rows learned so far."""
        if self._relaxation is None:
            self._relaxation = Relaxation(self._problem, self._evaluator)
        return self._relaxation

    def evaluate(self, assignment: Assignment) -> Evaluation:
        """Makespan and peaks of any assignment."""
        return self._evaluator.evaluate(assignment)

    def offer(self, assignment: Assignment) -> Evaluation:
        """Keep an assignment found elsewhere if it is better."""
        self._consider(assignment)
        return self._seen[assignment]

    def offer_uniform(self) -> None:
        """Try each family at each of its values, all others at their default."""
        for assignment in references(self._problem):
            self._consider(with_values(assignment, self._fixed))

    def guide(self, *, gap: float, enough: int | None = None) -> None:
        """Place optima of the relaxation and add the rows that they break, as long as that helps.

        Args:
            gap: relative distance to the bound at which the best assignment is good enough; half of it is what the
                relaxation may miss of its optimum.
            enough: a bound above this is good enough too, since nothing so large is wanted.
        """
        for _ in range(MAX_CUTTING_ROUNDS):
            relaxed = self.relaxation.solve(self._fixed, gap=gap / 2)
            if not relaxed.is_feasible:
                self.is_infeasible = True
                return
            self.lower_bound = max(self.lower_bound, relaxed.lower_bound)
            if enough is not None and self.lower_bound > enough:
                return
            placed = list(placements(self._problem, relaxed.counts))
            if not placed:
                return
            for assignment in placed:
                self._consider(assignment)
            if self.feasible and self.value * (1 - gap) <= self.lower_bound:
                return
            nearest = min(placed, key=lambda assignment: self._key(self._seen[assignment]))
            if not self.relaxation.learn(nearest):
                return

    def improve(self, *, max_evaluations: int) -> None:
        """Change, move and trade values while that helps; a deterministic shuffle decides the order."""
        limit = self.num_evaluations + max_evaluations
        improved = True
        while improved:
            improved = False
            moves = [move for move in self._moves(self.best) if not self._fixed.keys() & move.keys()]
            self._random.shuffle(moves)
            for move in moves:
                if self.num_evaluations >= limit:
                    return
                improved = self._consider(with_values(self.best, move)) or improved

    def _consider(self, assignment: Assignment) -> bool:
        """Evaluate an assignment and keep it if it is better; returns whether it was."""
        if assignment in self._seen:
            return False
        evaluation = self._evaluator.evaluate(assignment)
        self._seen[assignment] = evaluation
        self.num_evaluations += 1
        if self._key(evaluation) < self._key(self.evaluation):
            self.best, self.evaluation = assignment, evaluation
            return True
        return False

    def _key(self, evaluation: Evaluation) -> tuple[tuple[int, int], int, int, int]:
        violation = self._problem.violation(evaluation)
        return violation, self._problem.value(evaluation), evaluation.makespan, evaluation.needed

    def _moves(self, assignment: Assignment) -> Iterator[dict[int, int]]:
        for decision, size in enumerate(self._problem.num_values):
            for value in range(size):
                if value != assignment[decision]:
                    yield {decision: value}
        families = [family.decisions for family in self._problem.families if len(family.decisions) > 1]
        for members, distance in product(families, NEAR):
            if distance > 0:
                yield from self._exchanges(members, distance, assignment)
        for first, second in product(families, families):
            if first is not second:
                yield from self._trades(first, second, assignment)

    def _exchanges(
        self, members: tuple[int, ...], distance: int, assignment: Assignment
    ) -> Iterator[dict[int, int]]:
        """Two members near each other, with as many values, exchange theirs."""
        sizes = self._problem.num_values
        for one, other in zip(members, members[distance:], strict=False):
            if assignment[one] != assignment[other] and sizes[one] == sizes[other]:
                yield {one: assignment[other], other: assignment[one]}

    def _trades(
        self, first: tuple[int, ...], second: tuple[int, ...], assignment: Assignment
    ) -> Iterator[dict[int, int]]:
        """A member of one family returns to its default while one near it in another family leaves its own."""
        for position, decision in enumerate(first):
            if not assignment[decision]:
                continue
            for offset in (0, *NEAR):
                place = position + offset
                if 0 <= place < len(second) and not assignment[second[place]]:
                    yield {decision: 0, second[place]: 1}
