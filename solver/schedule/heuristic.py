"""Good assignments fast: optima of the class relaxation placed by patterns, then local search on the evaluator."""

from collections.abc import Mapping

from solver.schedule.descent import descend
from solver.schedule.evaluate import Evaluator
from solver.schedule.patterns import placements, with_values
from solver.schedule.problem import Assignment, Evaluation, Problem
from solver.schedule.relaxation import Relaxation, references

MAX_CUTTING_ROUNDS = 12
MIN_CHANGES = 80
"""A step of local search looks at so many single changes, or more where more evaluations are allowed."""
EVALUATIONS_PER_CHANGE = 5
MAX_STARTS = 2
"""Assignments beside the best from which local search starts."""


class Heuristic:
    """Keeps the best assignment seen; budget and deadline may be exceeded only while nothing keeps both."""

    def __init__(
        self,
        problem: Problem,
        *,
        like: "Heuristic | None" = None,
        fixed: Mapping[int, int] | None = None,
    ) -> None:
        """Start from the default of every decision.

        Args:
            problem: what is solved.
            like: of a problem that differs in budget, deadline and aim alone; its rows are taken over.
            fixed: decisions that are taken.
        """
        self._problem = problem
        self._evaluator: Evaluator = like._evaluator if like else Evaluator(problem)
        self._relaxation: Relaxation | None = like.relaxation.of(problem) if like else None
        self._fixed = fixed or {}
        self._seen: dict[Assignment, Evaluation] = {}
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

    def sharpen(self, *, gap: float, enough: int | None = None) -> None:
        """Learn longest paths too, which bound more but tell decisions of a class apart; otherwise like `guide`."""
        self.relaxation.follows_paths = True
        self.relaxation.learn(self.best)
        self.guide(gap=gap, enough=enough)

    def improve(self, *, max_evaluations: int, enough: int = -1) -> None:
        """Local search from the best, and from what would be better but keeps no budget or deadline.

        Args:
            max_evaluations: of assignments that were not seen before.
            enough: a value that needs no improvement.
        """
        limit = len(self._seen) + max_evaluations

        def evaluate(assignment: Assignment) -> Evaluation | None:
            is_enough = self.feasible and self.value <= enough
            if is_enough or (assignment not in self._seen and len(self._seen) >= limit):
                return None
            return self.offer(assignment)

        max_changes = max(MIN_CHANGES, max_evaluations // EVALUATIONS_PER_CHANGE)
        for start in self._starts():
            descend(self._problem, start, evaluate, max_changes=max_changes, taken=self._fixed.keys())

    def _starts(self) -> list[Assignment]:
        """The nearest of those that keep no limit but would be better, and the best."""
        better = {
            self._key(evaluation): assignment
            for assignment, evaluation in self._seen.items()
            if not self._problem.is_feasible(evaluation)
            and (self._problem.value(evaluation) < self.value or not self.feasible)
        }
        nearest = [better[key] for key in sorted(better)[:MAX_STARTS]]
        return [*nearest, self.best] if self.feasible else nearest

    def _consider(self, assignment: Assignment) -> None:
        """Evaluate an assignment and keep it if it is better."""
        if assignment in self._seen:
            return
        evaluation = self._evaluator.evaluate(assignment)
        self._seen[assignment] = evaluation
        if self._key(evaluation) < self._key(self.evaluation):
            self.best, self.evaluation = assignment, evaluation

    def _key(self, evaluation: Evaluation) -> tuple[tuple[int, int], int, int, int]:
        violation = self._problem.violation(evaluation)
        return violation, self._problem.value(evaluation), evaluation.makespan, evaluation.needed
