"""Good assignments fast: patterns over the families, then local search on the evaluator. Limited by evaluations."""

import random
from collections.abc import Iterator, Sequence
from itertools import product

from solver.schedule.evaluate import Evaluator
from solver.schedule.patterns import SPREADS, Spread, with_values
from solver.schedule.problem import Assignment, Evaluation, Family, Problem

NUM_COUNTS = 8
"""Counts of members that a joint pattern tries for its first family."""


class Heuristic:
    """Keeps the best assignment seen; the budget may be exceeded only while nothing fits."""

    def __init__(self, problem: Problem, *, seed: int = 0) -> None:
        self._problem = problem
        self._evaluator = Evaluator(problem)
        self._random = random.Random(seed)
        self._seen: dict[Assignment, Evaluation] = {}
        self._limit = 0
        self.num_evaluations = 0
        self.best: Assignment = (0,) * problem.num_decisions
        self.evaluation: Evaluation = self._evaluator.evaluate(self.best)

    @property
    def feasible(self) -> bool:
        """Whether the best assignment keeps the budget."""
        return self._excess(self.evaluation) == 0

    def evaluate(self, assignment: Assignment) -> Evaluation:
        """Makespan and peaks of any assignment."""
        return self._evaluator.evaluate(assignment)

    def offer(self, assignment: Assignment) -> Evaluation:
        """Keep an assignment found elsewhere if it is better."""
        evaluation = self._evaluator.evaluate(assignment)
        if self._key(evaluation) < self._key(self.evaluation):
            self.best, self.evaluation = assignment, evaluation
        return evaluation

    def sketch(self, *, max_evaluations: int) -> None:
        """Patterns only: enough to rank this problem among others."""
        self._limit = self.num_evaluations + max_evaluations
        self._try_patterns()

    def improve(self, starts: Sequence[Assignment] = (), *, max_evaluations: int) -> None:
        """Patterns around the best, then local search."""
        self._limit = self.num_evaluations + max_evaluations
        for start in starts:
            self._consider(start)
        self._try_patterns()
        self._local_search()

    def _excess(self, evaluation: Evaluation) -> int:
        budget = self._problem.budget
        return 0 if budget is None else max(0, evaluation.peak - budget)

    @property
    def _exhausted(self) -> bool:
        return self.num_evaluations >= self._limit

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

    def _key(self, evaluation: Evaluation) -> tuple[int, int, int]:
        return self._excess(evaluation), evaluation.makespan, evaluation.peak

    # Patterns

    def _try_patterns(self) -> None:
        """Single decisions first, then large families together: how many members leave their default, and where."""
        large = [family for family in self._problem.families if len(family.decisions) > 1]
        single = [family.decisions[0] for family in self._problem.families if len(family.decisions) == 1]
        for family in large:
            for spread in SPREADS:
                self._fewest(self._cleared(family), family, spread)
        self._try_values(single)
        for first, second in product(large, large):
            if first is not second:
                self._try_jointly(first, second)
        self._try_values(single)

    def _try_values(self, decisions: Sequence[int]) -> None:
        """Every value of single decisions, one after the other, on the best."""
        for decision in decisions:
            for value in range(self._problem.num_values[decision]):
                if self._exhausted:
                    return
                self._consider(with_values(self.best, {decision: value}))

    def _try_jointly(self, first: Family, second: Family) -> None:
        """Some members of `first` off their default, and as few of `second` as then fit; coarse, then refined."""
        size = len(first.decisions)
        base = with_values(self.best, dict.fromkeys((*first.decisions, *second.decisions), 0))
        step = max(1, size // NUM_COUNTS)
        tried: list[tuple[tuple[int, int, int], int, int]] = []
        placements = list(product(SPREADS, SPREADS))

        def attempt(count: int, placement: int) -> None:
            placed, filled = placements[placement]
            start = with_values(base, dict.fromkeys(placed(first.decisions, count), 1))
            tried.append((self._fewest(start, second, filled), count, placement))

        for placement, count in product(range(len(placements)), range(0, size + 1, step)):
            if self._exhausted:
                return
            attempt(count, placement)
        while step > 1 and not self._exhausted:
            step //= 2
            _, count, placement = min(tried)
            for near in (count - step, count + step):
                if 0 <= near <= size:
                    attempt(near, placement)

    def _fewest(self, start: Assignment, family: Family, spread: Spread) -> tuple[int, int, int]:
        """Bisect the fewest members of `family` off their default that fit; the key of the best met on the way."""
        keys: list[tuple[int, int, int]] = []

        def fits(count: int) -> bool:
            assignment = with_values(start, dict.fromkeys(spread(family.decisions, count), 1))
            self._consider(assignment)
            keys.append(self._key(self._seen[assignment]))
            return self._excess(self._seen[assignment]) == 0

        low, high = 0, len(family.decisions)
        if fits(low):
            return keys[0]
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                high = middle
            else:
                low = middle
        fits(high)
        return min(keys)

    def _cleared(self, family: Family) -> Assignment:
        return with_values(self.best, dict.fromkeys(family.decisions, 0))

    # Local search

    def _local_search(self) -> None:
        """Change, move and exchange values while that helps; a deterministic shuffle decides the order."""
        improved = True
        while improved:
            improved = False
            moves = list(self._moves(self.best))
            self._random.shuffle(moves)
            for move in moves:
                if self.num_evaluations >= self._limit:
                    return
                improved = self._consider(with_values(self.best, move)) or improved

    def _moves(self, assignment: Assignment) -> Iterator[dict[int, int]]:
        for decision, size in enumerate(self._problem.num_values):
            for value in range(size):
                if value != assignment[decision]:
                    yield {decision: value}
        for family in self._problem.families:
            yield from self._shifts(family, assignment)
        large = [family for family in self._problem.families if len(family.decisions) > 1]
        for first, second in product(large, large):
            if first is not second:
                yield from self._trades(first, second, assignment)

    def _shifts(self, family: Family, assignment: Assignment) -> Iterator[dict[int, int]]:
        """Two members near each other exchange their values."""
        for distance in (1, 2, 3):
            for one, other in zip(family.decisions, family.decisions[distance:], strict=False):
                if assignment[one] != assignment[other]:
                    yield {one: assignment[other], other: assignment[one]}

    def _trades(self, first: Family, second: Family, assignment: Assignment) -> Iterator[dict[int, int]]:
        """A member of one family returns to its default while the nearest members of another leave theirs."""
        for position, decision in enumerate(first.decisions):
            if not assignment[decision]:
                continue
            for offset in (0, 1, -1, 2, -2):
                place = position + offset
                if 0 <= place < len(second.decisions) and not assignment[second.decisions[place]]:
                    yield {decision: 0, second.decisions[place]: 1}
