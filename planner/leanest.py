"""The plan that needs least memory, whatever its time: best-first over regions, the lowest bound first."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from planner.schema import PlanRequest
from planner.space.opened import OpenCandidate, Region, regions
from solver.schedule.problem import Assignment, Evaluation
from solver.schedule.search import Limits, least_memory

_LIMITS = Limits(deterministic_time=2.0, wall_clock_s=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leanest:
    """The leanest plan found."""

    item: OpenCandidate
    assignment: Assignment
    evaluation: Evaluation
    lower_bound: int
    """No plan needs less device memory."""

    @property
    def fits(self) -> bool:
        """Whether it keeps its budget."""
        return self.evaluation.needed <= self.item.costs.budget.budget_bytes

    @property
    def is_proven(self) -> bool:
        """Nothing is leaner."""
        return self.evaluation.needed <= self.lower_bound


def leanest(request: PlanRequest, *, until: Callable[[Leanest], bool] = lambda _: False) -> Leanest:
    """Search the leanest plan of a request.

    Args:
        request: what to plan; its budget does not matter.
        until: whether a plan is lean enough, so that the search can end.

    Raises:
        InconsistentRequest: nothing is left to search.
        KeyboardInterrupt: a person stopped it.
    """
    return leanest_of(regions(request), until=until)


def leanest_of(found: Iterable[Region], *, until: Callable[[Leanest], bool] = lambda _: False) -> Leanest:
    """As `leanest`, of some regions; the first setting of each takes least memory."""
    order = count()
    queue = [(region.floor_bytes(), next(order), 0, region) for region in found]
    heapify(queue)
    best: Leanest | None = None
    done: list[int] = []
    """Bounds of regions that cannot be bounded any better."""
    while queue and not (best and (best.evaluation.needed <= queue[0][0] or until(best))):
        bound, _, stage, region = heappop(queue)
        item = region.open(region.settings[0])
        if stage == 0:
            lean = item.heuristic.least_memory()
            assignment, bound = lean.assignment, max(bound, lean.lower_bound)
        else:
            result = least_memory(item.problem, item.heuristic.best, _LIMITS)
            if result.interrupted:
                raise KeyboardInterrupt
            assignment, bound = result.assignment, max(bound, result.lower_bound)
        if assignment is not None:
            evaluation = item.heuristic.evaluate(assignment)
            if best is None or evaluation.needed < best.evaluation.needed:
                best = Leanest(item=item, assignment=assignment, evaluation=evaluation, lower_bound=0)
        if stage == 0:
            heappush(queue, (bound, next(order), 1, region))
        else:
            done.append(bound)
    assert best is not None, "some assignment always exists"
    bounds = [*done, *(entry[0] for entry in queue), best.evaluation.needed]
    return Leanest(item=best.item, assignment=best.assignment, evaluation=best.evaluation, lower_bound=min(bounds))
