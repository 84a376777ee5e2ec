"""The best plan that a search knows, and what would be better by enough to matter."""

from dataclasses import dataclass

from planner.space.opened import OpenCandidate
from solver.schedule.problem import Assignment
from solver.schedule.tidy import tidy


@dataclass(slots=True, kw_only=True)
class Incumbent:
    """A plan, with its decisions and its value; all None before the first."""

    gap: float
    """Relative distance to the bound that is accepted."""
    item: OpenCandidate | None = None
    assignment: Assignment | None = None
    value: int | None = None
    """On what is minimised."""

    def offer(self, item: OpenCandidate) -> None:
        """Take the best decisions known for a problem if they keep its bounds and are better."""
        if not item.heuristic.feasible:
            return
        value = item.value(item.heuristic.value)
        if self.value is None or value < self.value:
            self.item, self.assignment, self.value = item, item.heuristic.best, value

    def target(self, gap: float | None = None) -> int | None:
        """What would improve it by more than a gap, half of the accepted one where it is not given."""
        if self.value is None:
            return None
        gap = self.gap / 2 if gap is None else gap
        return min(self.value - 1, int(self.value * (1 - gap)))

    def tidy(self, bound: int) -> None:
        """Spend half of the accepted gap, or what CP-SAT was spared, on a plan that a person can read."""
        if self.item is None or self.assignment is None or self.value is None:
            return
        left = int(bound / (1 - self.gap)) - self.value
        slack = int(self.value * self.gap / 2)
        slack = min(slack, left) if left >= 0 else slack
        self.assignment = tidy(self.item.problem, self.assignment, slack=slack)
        evaluation = self.item.heuristic.evaluate(self.assignment)
        self.value = self.item.value(self.item.problem.value(evaluation))
