"""Good assignments fast: patterns over the families, then local search on the evaluator. Limited by evaluations."""

import random
from collections.abc import Iterator, Sequence

from solver.schedule.evaluate import Evaluator
from solver.schedule.patterns import SPREADS, Spread, with_values
from solver.schedule.problem import Assignment, Evaluation, Family, Problem


class Heuristic:
    """Keeps the best assignment seen; `budget` may be exceeded only while nothing fits."""

    def __init__(self, problem: Problem, *, seed: int = 0) -> None:
        self._problem = problem
        self._evaluator = Evaluator(problem)
        self._random = random.Random(seed)
        self._seen: dict[Assignment, Evaluation] = {}
        self.num_evaluations = 0
        self.best: Assignment = (0,) * problem.num_decisions
        self.evaluation: Evaluation = self._evaluator.evaluate(self.best)

    @property
    def feasible(self) -> bool:
        """Whether the best assignment keeps the budget."""
        return self._excess(self.evaluation) == 0

    def run(self, starts: Sequence[Assignment] = (), *, max_evaluations: int = 600) -> None:
        """Try given starts and patterns, then improve the best by local search."""
        limit = self.num_evaluations + max_evaluations
        for start in starts:
            self._consider(start)
        for assignment in self._patterns():
            if self.num_evaluations >= limit - max_evaluations // 2:
                break
            self._consider(assignment)
        self._local_search(limit)

    def evaluate(self, assignment: Assignment) -> Evaluation:
        """Makespan and peaks of any assignment."""
        return self._evaluator.evaluate(assignment)

    def adopt(self, assignment: Assignment) -> None:
        """Take an assignment as the best, whatever it costs."""
        self.best, self.evaluation = assignment, self._evaluator.evaluate(assignment)

    def _excess(self, evaluation: Evaluation) -> int:
        budget = self._problem.budget
        return 0 if budget is None else max(0, evaluation.peak - budget)

    def _consider(self, assignment: Assignment) -> bool:
        if assignment in self._seen:
            return False
        evaluation = self._evaluator.evaluate(assignment)
        self._seen[assignment] = evaluation
        self.num_evaluations += 1
        if self._key(evaluation) < self._key(self.evaluation):
            self.best, self.evaluation = assignment, evaluation
            return True
        return False

    def _key(self, evaluation: Evaluation) -> tuple[int, int, int]:
        return self._excess(evaluation), evaluation.makespan, evaluation.peak

    def _patterns(self) -> Iterator[Assignment]:
        """For each combination of the small families, set one large family after the other by patterns."""
        large = [family for family in self._problem.families if len(family.decisions) > 1]
        small = [family for family in self._problem.families if len(family.decisions) == 1]
        for combination in self._combinations(small):
            for family in large:
                yield from self._sweep(combination, family, large)

    def _combinations(self, small: list[Family]) -> Iterator[Assignment]:
        def expand(assignment: Assignment, rest: list[Family]) -> Iterator[Assignment]:
            if not rest:
                yield assignment
                return
            decision = rest[0].decisions[0]
            for value in range(self._problem.num_values[decision]):
                yield from expand(with_values(assignment, {decision: value}), rest[1:])

        yield from expand((0,) * self._problem.num_decisions, small)

    def _sweep(self, base: Assignment, family: Family, large: list[Family]) -> Iterator[Assignment]:
        """Bisect how many members of `family` take each value, for the other families all at each extreme."""
        extremes: list[Assignment] = [base]
        for other in large:
            if other is family:
                continue
            size = self._problem.num_values[other.decisions[0]]
            extremes = [
                with_values(start, dict.fromkeys(other.decisions, value))
                for start in extremes
                for value in range(size)
            ]
        for start in extremes:
            for value in range(1, self._problem.num_values[family.decisions[0]]):
                for spread in SPREADS:
                    yield from self._bisect(start, family, value, spread)

    def _bisect(self, base: Assignment, family: Family, value: int, spread: Spread) -> Iterator[Assignment]:
        """Fewest (and most) members at `value` that keep the budget, between 0 and all."""
        low, high = 0, len(family.decisions)
        for count in (low, high):
            yield with_values(base, dict.fromkeys(spread(family.decisions, count), value))
        while high - low > 1:
            middle = (low + high) // 2
            assignment = with_values(base, dict.fromkeys(spread(family.decisions, middle), value))
            yield assignment
            fits = assignment in self._seen and self._excess(self._seen[assignment]) == 0
            lower_fits = self._excess(self._seen.get(base, self.evaluation)) == 0
            if fits != lower_fits:
                high = middle
            else:
                low = middle

    def _local_search(self, limit: int) -> None:
        """Flip, shift and swap values while that helps; a deterministic shuffle decides the order."""
        improved = True
        while improved and self.num_evaluations < limit:
            improved = False
            moves = list(self._moves(self.best))
            self._random.shuffle(moves)
            for move in moves:
                if self.num_evaluations >= limit:
                    return
                if self._consider(with_values(self.best, move)):
                    improved = True

    def _moves(self, assignment: Assignment) -> Iterator[dict[int, int]]:
        for decision, size in enumerate(self._problem.num_values):
            for value in range(size):
                if value != assignment[decision]:
                    yield {decision: value}
        for family in self._problem.families:
            for first, second in zip(family.decisions, family.decisions[1:], strict=False):
                if assignment[first] != assignment[second]:
                    yield {first: assignment[second], second: assignment[first]}
