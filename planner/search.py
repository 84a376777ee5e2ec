"""The search: a problem per global choice, heuristics on all, CP-SAT where the bound leaves room."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from planner.candidates import NoValueLeft, candidates, refuse_unknown_knobs
from planner.knobs import knob_names, num_micro_batches
from planner.nodes import Node, OpenCandidate, find_least_memory, first_nodes, open_candidate, split
from planner.schema import PlanRequest
from solver.schedule.patterns import with_values
from solver.schedule.problem import Assignment
from solver.schedule.search import Limits, Result, prove
from solver.schedule.tidy import tidy

SKETCH_EVALUATIONS = 160
"""Evaluations that rank one global choice among the others."""
IMPROVE_EVALUATIONS = 800
NUM_IMPROVED = 3
"""Best-ranked global choices whose heuristic solution is improved before anything is proven."""
FIRST_EFFORT = 0.5
"""Deterministic seconds of a node's first proof attempt; each further attempt gets twice as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a running search."""

    elapsed_s: float
    incumbent_ns: int | None
    """Best step time so far."""
    bound_ns: int | None
    """No plan is faster than this; None until every global choice has been looked at."""
    message: str


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Outcome of a search."""

    best: OpenCandidate | None
    assignment: Assignment | None
    lower_bound_ns: int
    """On the step."""
    all_candidates: tuple[OpenCandidate, ...]
    num_pruned: int
    deterministic_time: float
    wall_clock_struck: bool
    interrupted: bool


def search(request: PlanRequest, on_progress: OnProgress | None = None) -> Found:
    """Least step time over all global choices and all decisions in them."""
    return _Search(request, on_progress).run()


@dataclass(slots=True)
class _Search:
    """Heuristics on every global choice, then proofs on a shrinking set of nodes, the lowest bound first."""

    request: PlanRequest
    on_progress: OnProgress | None
    started: float = field(default_factory=monotonic)
    items: list[OpenCandidate] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    best: OpenCandidate | None = None
    assignment: Assignment | None = None
    micro_batch_ns: int | None = None
    spent: float = 0.0
    struck: bool = False
    interrupted: bool = False
    attempted: set[int] = field(default_factory=set)
    """Identities of the items that CP-SAT worked on."""
    all_open: bool = False
    """Every global choice has its nodes; before, nothing bounds the step time."""

    def run(self) -> Found:
        try:
            self._open_all()
            self._improve()
            self._prove()
        except KeyboardInterrupt:
            self.interrupted = True
        if self.interrupted and self.best is None:
            raise KeyboardInterrupt
        self._tidy()
        return Found(
            best=self.best,
            assignment=self.assignment,
            lower_bound_ns=self._bound(),
            all_candidates=tuple(self.items),
            num_pruned=self._num_pruned(),
            deterministic_time=round(self.spent, 6),
            wall_clock_struck=self.struck,
            interrupted=self.interrupted,
        )

    def _open_all(self) -> None:
        knobs: set[str] = set()
        refusals: list[NoValueLeft] = []
        for candidate in candidates(self.request):
            if self._is_late():
                self.struck = True
                return
            knobs.update(knob_names(candidate))
            try:
                item = open_candidate(self.request, candidate)
            except NoValueLeft as refusal:
                refusals.append(refusal)
                continue
            item.heuristic.sketch(max_evaluations=SKETCH_EVALUATIONS)
            if not item.heuristic.feasible:
                find_least_memory(item)
            self.items.append(item)
            if item.heuristic.feasible:
                self._offer(item, item.heuristic.best, item.heuristic.evaluation.makespan)
            self._report(f"trying {candidate.label}")
        refuse_unknown_knobs(self.request.fixed, knobs)
        if not self.items:
            raise refusals[0]
        self.items.sort(key=lambda item: (not item.heuristic.feasible, self._step_ns(item)))
        self.nodes = [node for item in self.items if item.can_fit for node in first_nodes(self.request, item)]
        self.all_open = True

    def _is_late(self) -> bool:
        """Whether the wall clock struck; the first plan is always waited for."""
        return self.best is not None and monotonic() - self.started > self.request.search.wall_clock_s

    def _improve(self) -> None:
        for item in [item for item in self.items if item.can_fit][:NUM_IMPROVED]:
            item.heuristic.improve(max_evaluations=IMPROVE_EVALUATIONS)
            if item.heuristic.feasible:
                self._offer(item, item.heuristic.best, item.heuristic.evaluation.makespan)
            self._report(f"improving {item.candidate.label}")

    def _prove(self) -> None:
        limit = self.request.search.deterministic_time
        while not (self.struck or self.interrupted) and self.spent < limit:
            worth = [node for node in self.nodes if self._worth_solving(node)]
            if not worth:
                return
            node = min(worth, key=lambda node: (node.attempts, self._bound_of(node) if node.attempts else 0))
            self._solve(node, min(limit - self.spent, FIRST_EFFORT * 2**node.attempts))

    def _solve(self, node: Node, effort: float) -> None:
        search = self.request.search
        label = node.item.candidate.label
        self._report(f"proving {label}")
        result = prove(
            node.problem,
            node.item.heuristic.best,
            Limits(
                deterministic_time=max(0.01, effort),
                relative_gap=search.gap / 2,
                wall_clock_s=max(0.1, search.wall_clock_s - (monotonic() - self.started)),
                seed=search.seed,
            ),
            cutoff=self._target(node.item),
            on_progress=lambda *_: self._report(f"proving {label}"),
        )
        node.attempts += 1
        self.attempted.add(id(node.item))
        self._account(node, result)
        if node.is_relaxed and node.is_finished and self._worth_solving(node):
            self.nodes.remove(node)
            self.nodes.extend(split(node))
        self._report(f"proved {label}" if node.is_finished else f"bounded {label}")

    def _account(self, node: Node, result: Result) -> None:
        self.spent += result.deterministic_time
        self.struck = self.struck or result.wall_clock_struck
        self.interrupted = self.interrupted or result.interrupted
        node.lower_bound = max(node.lower_bound, result.lower_bound)
        node.is_finished = result.is_finished
        node.is_empty = result.status == "infeasible"
        if result.assignment is None:
            return
        for depth in node.item.values("forward_prefetch") if node.is_relaxed else [{}]:
            assignment = with_values(result.assignment, node.fixed | depth)
            evaluation = node.item.heuristic.offer(assignment)
            if evaluation.peak <= node.item.costs.budget.budget_bytes:
                self._offer(node.item, assignment, evaluation.makespan)

    def _step_of(self, item: OpenCandidate, micro_batch_ns: int) -> int:
        return num_micro_batches(self.request) * micro_batch_ns + item.optimizer_ns

    def _step_ns(self, item: OpenCandidate) -> int:
        return self._step_of(item, item.heuristic.evaluation.makespan)

    def _bound_of(self, node: Node) -> int:
        return self._step_of(node.item, node.lower_bound)

    def _incumbent(self) -> int | None:
        if self.best is None or self.micro_batch_ns is None:
            return None
        return self._step_of(self.best, self.micro_batch_ns)

    def _offer(self, item: OpenCandidate, assignment: Assignment, micro_batch_ns: int) -> None:
        incumbent = self._incumbent()
        if incumbent is None or self._step_of(item, micro_batch_ns) < incumbent:
            self.best, self.assignment, self.micro_batch_ns = item, assignment, micro_batch_ns

    def _target(self, item: OpenCandidate) -> int | None:
        """Micro-batch time that would improve the incumbent by more than half of the accepted gap."""
        incumbent = self._incumbent()
        if incumbent is None:
            return None
        wanted = min(incumbent - 1, int(incumbent * (1 - self.request.search.gap / 2)))
        return (wanted - item.optimizer_ns) // num_micro_batches(self.request)

    def _worth_solving(self, node: Node) -> bool:
        target = self._target(node.item)
        solved = node.is_finished and not node.is_relaxed
        return not (solved or node.is_empty) and (target is None or node.lower_bound <= target)

    def _num_pruned(self) -> int:
        """Global choices that were never tried to prove and need not be."""
        if not self.all_open:
            return 0
        waiting = {id(node.item) for node in self.nodes if self._worth_solving(node)}
        return sum(id(item) not in self.attempted | waiting for item in self.items)

    def _tidy(self) -> None:
        """Spend half of the accepted gap on a plan that a person can read."""
        if self.best is None or self.assignment is None or self.micro_batch_ns is None:
            return
        slack = int(self.micro_batch_ns * self.request.search.gap / 2)
        self.assignment = tidy(self.best.problem, self.assignment, slack=slack)
        self.micro_batch_ns = self.best.heuristic.evaluate(self.assignment).makespan

    def _bound(self) -> int:
        if not self.all_open:
            return 0
        incumbent = self._incumbent()
        bounds = [self._bound_of(node) for node in self.nodes]
        return min([*bounds, *(() if incumbent is None else (incumbent,))], default=0)

    def _report(self, message: str) -> None:
        if self.on_progress is not None:
            self.on_progress(
                Progress(
                    elapsed_s=monotonic() - self.started,
                    incumbent_ns=self._incumbent(),
                    bound_ns=self._bound() if self.all_open else None,
                    message=message,
                )
            )
