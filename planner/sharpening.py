"""How the bound of a node is sharpened, and what plans are found meanwhile: class relaxation, paths, CP-SAT."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from planner.frontier import Frontier
from planner.incumbent import Incumbent
from planner.nodes import Node, Tried
from planner.schema import SearchLimits
from planner.space.opened import OpenCandidate
from solver.schedule.problem import Assignment
from solver.schedule.search import Limits, prove

LOCAL_EVALUATIONS = (400, 2_000)
"""Least and most evaluations of a local search in a region that stays in question."""
LOCAL_STEPS = 12_000_000
"""Between these, as many as pass over so many steps of the problem."""
EFFORT_PER_STEP = 2e-5
"""Deterministic seconds that opening a problem counts for each of its steps: about what building it takes."""
FIRST_EFFORT = 0.5
"""Deterministic seconds of a region's first CP-SAT run; each further one gets twice as much."""


@dataclass(slots=True, kw_only=True)
class Sharpening:
    """Of one search."""

    limits: SearchLimits
    incumbent: Incumbent
    frontier: Frontier
    started: float = field(default_factory=monotonic)
    spent: float = 0.0
    """Deterministic seconds."""
    struck: bool = False
    """The wall clock ended a run."""
    interrupted: bool = False
    """A person did."""

    @property
    def is_late(self) -> bool:
        """The wall clock has struck."""
        return monotonic() - self.started > self.limits.wall_clock_s

    @property
    def is_spent(self) -> bool:
        """The deterministic effort has ended."""
        return self.spent >= self.limits.deterministic_time

    def is_near(self, value: int | None, node: Node) -> bool:
        """Whether a value is within the accepted gap of a node's bound."""
        return value is not None and node.lower_bound >= value * (1 - self.limits.gap)

    def improve(self, item: OpenCandidate, *, enough: int = 0) -> None:
        """Local search, to a value that is good enough at the most."""
        least, most = LOCAL_EVALUATIONS
        num_steps = sum(len(one.steps) for one in item.problem.rounds)
        item.heuristic.improve(
            max_evaluations=min(most, max(least, LOCAL_STEPS // max(1, num_steps))), enough=enough - item.value(0)
        )
        self.incumbent.offer(item)

    def relax(self, node: Node) -> None:
        """The class relaxation, and its optimum under the settings."""
        item = self._bounded_by_classes(node)
        may_win = self.incumbent.value is None or item.value(item.heuristic.value) < self.incumbent.value
        if not node.is_empty and self.frontier.is_open(node) and may_win:
            self._try(node, item.heuristic.best)

    def sharpen(self, node: Node) -> None:
        """Longest paths, before the whole problem goes to CP-SAT."""
        item = self._bounded_by_paths(node)
        if not node.is_relaxed:
            self.incumbent.offer(item)
        elif not node.is_empty and self.frontier.is_open(node):
            self._try(node, item.heuristic.best)

    def bound_family(self, node: Node) -> None:
        """The class relaxation of all sets of a family together, the next time their longest paths."""
        if node.stage:
            self._bounded_by_paths(node)
        else:
            self._bounded_by_classes(node)

    def _bounded_by_classes(self, node: Node) -> OpenCandidate:
        item = node.item()
        self.count(item)
        item.heuristic.guide(gap=self.limits.gap / 4, enough=self._enough(item))
        return self._bounded(node, item)

    def _bounded_by_paths(self, node: Node) -> OpenCandidate:
        item = node.item()
        item.heuristic.sharpen(gap=self.limits.gap / 4, enough=self._enough(item))
        return self._bounded(node, item)

    def _bounded(self, node: Node, item: OpenCandidate) -> OpenCandidate:
        self._learn(node, item.heuristic.lower_bound)
        node.is_empty = item.heuristic.is_infeasible
        return item

    def _enough(self, item: OpenCandidate) -> int | None:
        """A problem with a bound above this is out."""
        target = self.incumbent.target()
        return None if target is None else target - item.value(0)

    def prove(self, node: Node, on_progress: Callable[[], None]) -> None:
        """CP-SAT, with twice the effort each time; `on_progress` is called whenever it finds something."""
        limits, item = self.limits, node.item()
        target = self.incumbent.target(limits.gap)
        cutoff = None if target is None else target - item.value(0)
        result = prove(
            item.problem,
            item.heuristic.best,
            Limits(
                deterministic_time=max(
                    0.01, min(limits.deterministic_time - self.spent, FIRST_EFFORT * 2.0 ** (node.stage - 3))
                ),
                relative_gap=limits.gap / 2,
                wall_clock_s=max(0.1, limits.wall_clock_s - (monotonic() - self.started)),
                seed=limits.seed,
            ),
            cutoff=cutoff,
            on_progress=lambda *_: on_progress(),
        )
        self.spent += result.deterministic_time
        self.struck = self.struck or result.wall_clock_struck
        self.interrupted = self.interrupted or result.interrupted
        self._learn(node, result.lower_bound)
        node.is_finished = result.is_finished
        if result.assignment is not None:
            item.heuristic.offer(result.assignment)
            self._try(node, result.assignment)

    def count(self, item: OpenCandidate) -> None:
        """What opening a problem takes."""
        self.spent += EFFORT_PER_STEP * sum(len(one.steps) for one in item.problem.rounds)

    def _learn(self, node: Node, lower_bound: int) -> None:
        node.lower_bound = max(node.lower_bound, node.item().value(lower_bound))

    def _try(self, node: Node, assignment: Assignment) -> None:
        """Evaluate decisions under the first setting."""
        setting = node.settings[0]
        opened = node.open(setting)
        self.count(opened)
        heuristic = opened.heuristic
        heuristic.offer(assignment)
        if self.incumbent.item is None and not heuristic.feasible:
            heuristic.offer_uniform()
        if self.incumbent.item is None and not heuristic.feasible and self.frontier.is_counted:
            heuristic.guide(gap=self.limits.gap / 4)
        node.tried[setting] = Tried(
            exceeds=not heuristic.feasible,
            value=opened.value(heuristic.value),
            step_ns=opened.step_ns(heuristic.evaluation),
            needed_bytes=heuristic.evaluation.needed,
        )
        self.incumbent.offer(opened)
