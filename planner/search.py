"""The search: best-first over regions of global choices, each bounded ever more sharply, the lowest bound first.

A region is bounded by its floor, then by the class relaxation of its problem, with rows added as needed, then by
CP-SAT. Whenever that yields decisions they are tried under the region's settings. A region leaves when its bound
shows that it cannot improve the best plan by more than half of the accepted gap.
"""

from dataclasses import dataclass, field, replace
from itertools import islice
from time import monotonic

from planner.collector import without_collector
from planner.found import Found, OnBetter, OnProgress, Progress
from planner.frontier import Frontier
from planner.incumbent import Incumbent
from planner.nodes import Node
from planner.schema import Decisions, InconsistentRequest, PlanRequest, ShardwrightError
from planner.sharpening import Sharpening
from planner.space.contradictions import no_plan_left
from planner.space.fixed import NoValueLeft
from planner.space.opened import Goal
from planner.space.regions import regions
from planner.space.sharding import NoCostOnHost
from planner.space.warm import opened_from
from solver.schedule.problem import Aim, Assignment

EFFORT_PER_PART = 2e-3
"""Deterministic seconds that splitting a family counts."""
MAX_FAMILIES = 3
"""Families of which the smallest sets are looked at before they are split."""
MAX_SETS = 4
"""Of each, so many sets after the best of them."""
WORTH_BOUNDING = 0.93
"""A family with a floor below this share of the best plan is split: relaxations seldom raise a floor by more."""
MAX_SETTINGS = 3
"""Of a region that is lower than all before, so many settings at the most are looked at before other regions."""


def search(
    request: PlanRequest,
    on_progress: OnProgress | None = None,
    *,
    goal: Goal | None = None,
    only_first: bool = False,
    on_better: OnBetter | None = None,
    warm_start: Decisions | None = None,
) -> Found:
    """The best plan over all global choices and all decisions in them.

    Args:
        request: what to plan.
        on_progress: told how far the search is.
        goal: what to minimise within which bounds, the request's own where it is not given.
        only_first: any plan that keeps the bounds will do.
        on_better: told of the best plan so far, every now and then.
        warm_start: decisions of an earlier plan; where they keep the bounds, only what is better is looked for.

    Raises:
        InconsistentRequest: the fixed choices leave nothing to search.
        KeyboardInterrupt: a person stopped it before there was a plan.
    """
    return _Search(
        request=request,
        on_progress=on_progress,
        goal=goal or Goal.of(request),
        incumbent=Incumbent(gap=request.search.gap),
        only_first=only_first,
        on_better=on_better,
        warm_start=warm_start,
    ).run()


@dataclass(slots=True, kw_only=True)
class _Search:
    request: PlanRequest
    on_progress: OnProgress | None
    goal: Goal
    incumbent: Incumbent
    only_first: bool
    on_better: OnBetter | None
    warm_start: Decisions | None
    frontier: Frontier = field(init=False)
    sharpening: Sharpening = field(init=False)
    polished: Assignment | None = None
    """The incumbent's decisions, where local search started from them."""
    refusal: InconsistentRequest | None = None
    """Why there are no regions that do not offload, or none that do."""
    lowest: int | None = None
    """The lowest bound of a region that was relaxed since they are known."""

    def __post_init__(self) -> None:
        self.frontier = Frontier(incumbent=self.incumbent)
        self.sharpening = Sharpening(limits=self.request.search, incumbent=self.incumbent, frontier=self.frontier)

    def run(self) -> Found:
        try:
            with without_collector():  # collecting takes a third of the time to build problems
                self._start_warm()
                self._open(on_host=False)
                if self.goal.aim is not Aim.MAKESPAN:
                    self._open(on_host=True)
                self._run()
                if self.incumbent.item is None and self.goal.aim is Aim.MAKESPAN:
                    self._open(on_host=True)
                    self._run()
                if self.refusal and not self.frontier.num_choices:
                    raise self.refusal
        except KeyboardInterrupt:
            if self.incumbent.item is None:
                raise
            self.sharpening.interrupted = True
        if not self.frontier.num_choices:
            raise no_plan_left(self.request, self._refusal_of)
        found = self._found()
        self.incumbent.tidy(found.lower_bound)
        return replace(found, best=self.incumbent.item, assignment=self.incumbent.assignment)

    def _refusal_of(self, request: PlanRequest) -> str | None:
        try:
            for on_host in (False, True):
                if next(regions(request, self.goal, on_host=on_host), None):
                    return None
        except ShardwrightError as error:
            return str(error)
        return ""

    def _found(self) -> Found:
        return Found(
            best=self.incumbent.item,
            assignment=self.incumbent.assignment,
            lower_bound=self.frontier.bound() if self.frontier.is_counted else 0,
            nodes=tuple(self.frontier.nodes),
            num_regions=self.frontier.num_choices,
            num_pruned=self.frontier.num_pruned() if self.frontier.is_counted else 0,
            deterministic_time=round(self.sharpening.spent, 6),
            wall_clock_struck=self.sharpening.struck,
            interrupted=self.sharpening.interrupted,
        )

    def _start_warm(self) -> None:
        """The earlier decisions become the plan to improve on, before any region is looked at."""
        if self.warm_start is None:
            return
        self._report("trying the earlier plan")
        opened = opened_from(self.request, self.goal, self.warm_start)
        if opened is not None:
            self.sharpening.count(opened)
            self.incumbent.offer(opened)

    def _run(self) -> None:
        while not (
            self.sharpening.struck or self.sharpening.interrupted or (self.only_first and self.incumbent.item)
        ):
            node = self.frontier.pop()
            if node is not None:
                self._step(node)
            elif self.frontier.families:
                self._open_families()
            else:
                return

    def _open(self, *, on_host: bool) -> None:
        """All regions; the first that fits gives a plan at once, before the others are even costed."""
        self.frontier.is_counted = False
        self._report("listing global choices")
        try:
            self._list(on_host=on_host)
        except (NoValueLeft, NoCostOnHost) as refusal:
            self.refusal = self.refusal or refusal
        self.frontier.is_counted = True

    def _list(self, *, on_host: bool) -> None:
        first = len(self.frontier.nodes)
        for region in regions(self.request, self.goal, on_host=on_host):
            self.frontier.num_choices += region.num_choices
            self._tell()
            node = Node.of(region)
            if node is not None and region.is_family:
                self.frontier.families.append(node)
                for sample in islice(region.samples(), self._num_samples):
                    self._add(Node.of(sample))
            else:
                self._add(node)
        for node in self.frontier.nodes[first:]:
            self.frontier.push(node)
        self.frontier.nodes += self.frontier.families

    @property
    def _num_samples(self) -> int | None:
        """Of each family; None for all. The one that frees most needs least memory, however long it takes."""
        return 1 if self.goal.aim is not Aim.MAKESPAN and self.goal.step_time_ns is None else None

    def _add(self, node: Node | None) -> None:
        """One more to look at, which is relaxed at once as long as there is no plan."""
        if node is None or not self.frontier.is_new(node):
            return
        if self.incumbent.item is None:
            self.sharpening.relax(node)
            node.stage += 1
            self._report(f"looked at {node.region.label}")
        self.frontier.add(node)

    def _step(self, node: Node) -> None:
        """Sharpen a bound: class relaxation, local search, CP-SAT."""
        limit = self.request.search
        if self.incumbent.item is not None and self.sharpening.is_late:
            self.sharpening.struck = True
        elif self.incumbent.item is not None and self.sharpening.is_spent:
            self.frontier.clear()
            return
        elif node.region.is_family and self._is_to_part(node):
            self.sharpening.spent += EFFORT_PER_PART
            self.frontier.part(node)
            self._tell()
            return
        elif node.region.is_family:
            self._report(f"bounding {node.region.label}")
            self.sharpening.bound_family(node)
        elif node.stage == 0:
            self._report(f"looking at {node.region.label}")
            self.sharpening.relax(node)
            if self._is_promising(node):
                self._polish()
                if not self.sharpening.is_near(self.incumbent.value, node):
                    self._dive(node)
                    return
        elif node.is_relaxed and self._polish():
            self.frontier.push(node)
            return
        elif node.is_relaxed and node.stage == 1:
            self._report(f"bounding {node.region.label}")
            self.sharpening.sharpen(node)
        elif node.is_relaxed:
            for child in self.frontier.split(node):
                self.frontier.push(child)
            return
        elif node.stage == 1:
            self._report(f"improving {node.region.label}")
            self.sharpening.improve(node.item(), enough=int(node.lower_bound / (1 - limit.gap / 2)))
        elif self.sharpening.is_spent or self.sharpening.is_near(self.incumbent.value, node):
            return
        elif self.frontier.families and node.stage > 2:
            self._open_families()  # there is a good plan; what bounds it is sets that were not looked at
            self.frontier.push(node)
            return
        elif self._polish():
            self.frontier.push(node)
            return
        elif node.stage == 2:
            self._report(f"bounding {node.region.label}")
            self.sharpening.sharpen(node)
        else:
            self._report(f"proving {node.region.label}")
            self.sharpening.prove(node, lambda: self._report(f"proving {node.region.label}"))
        node.stage += 1
        self.frontier.push(node)

    def _open_families(self) -> None:
        """Sets with as few units off the device as may fit are looked at first, where these may be fastest."""
        if self.goal.aim is Aim.MAKESPAN:
            self._report("looking for the fewest units off the device")
            first = {
                number: next(family.region.least_off(), None)
                for number, family in enumerate(self.frontier.families)
                if self.frontier.is_open(family)
            }
            self.sharpening.spent += EFFORT_PER_PART * len(first)
            floors = {number: one.floor for number, one in first.items() if one and one.floor is not None}
            for number in sorted(floors, key=lambda number: floors[number])[:MAX_FAMILIES]:
                self._look_at_least_off(self.frontier.families[number])
        self.frontier.push_families()

    def _look_at_least_off(self, family: Node) -> None:
        """One unit more each time, as long as that helps."""
        best, since = self.incumbent.value, 0
        for region in family.region.least_off():
            node = Node.of(region)
            if node is None or not (self.frontier.is_new(node) and self.frontier.may_improve(node)):
                continue
            self.frontier.add(node)
            self._report(f"looking at {region.label}")
            self.sharpening.relax(node)
            node.stage += 1
            if self.frontier.is_open(node):
                self._polish()
                self._dive(node)
            best, since = self.incumbent.value, since + 1 if self.incumbent.value == best else 0
            if since == MAX_SETS or (self.incumbent.item and (self.sharpening.is_late or self.sharpening.is_spent)):
                return

    def _polish(self) -> bool:
        """Whether local search from the best plan is new: it costs less than further bounds, and may spare them."""
        if self.incumbent.item is None or self.incumbent.assignment == self.polished:
            return False
        self._report(f"improving {self.incumbent.item.candidate.label}")
        self.sharpening.improve(
            self.incumbent.item, enough=int(self.frontier.bound() / (1 - self.request.search.gap / 2))
        )
        self.polished = self.incumbent.assignment
        return True

    def _is_promising(self, node: Node) -> bool:
        """Whether its settings should be looked at now: no bound is lower, no known plan is nearly as good."""
        if not (node.is_relaxed and self.frontier.is_open(node)):
            return False
        is_lowest = self.lowest is None or node.lower_bound < self.lowest
        if is_lowest:
            self.lowest = node.lower_bound
        return is_lowest and not self.sharpening.is_near(self.incumbent.value, node)

    def _dive(self, node: Node) -> None:
        """Look at settings up to the first that may be nearly as good as all of them, or a few that fit: others are
        measured by what is found.
        """
        left = MAX_SETTINGS
        for child in self.frontier.split(node):
            if left:
                self.sharpening.relax(child)
                child.stage += 1
                left -= not child.is_empty
                left = 0 if self.sharpening.is_near(child.lower_bound, node) and not child.is_empty else left
            self.frontier.push(child)

    def _is_to_part(self, family: Node) -> bool:
        """Whether it is split next. Before, a relaxation bounds its memory, or its time where its sets are nearly
        alike, by classes and by longest paths, unless its floor is so low that these would hardly rule it out.
        """
        if self.goal.aim is not Aim.MAKESPAN:
            return family.stage == 1
        target = self.incumbent.target()
        is_hopeless = target is not None and family.lower_bound < WORTH_BOUNDING * target
        return is_hopeless or not family.region.is_narrow or family.stage == 2

    def _report(self, message: str) -> None:
        if self.on_progress is not None:
            unit = "ns" if self.goal.aim is Aim.MAKESPAN else "bytes"
            bound = self.frontier.bound() if self.frontier.is_counted else None
            known = {f"incumbent_{unit}": self.incumbent.value, f"bound_{unit}": bound}
            self.on_progress(Progress(elapsed_s=monotonic() - self.sharpening.started, message=message, **known))
        self._tell()

    def _tell(self) -> None:
        if self.on_better is not None and self.incumbent.value is not None:
            self.on_better(self.incumbent.value, self._found)
