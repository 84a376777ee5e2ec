"""Parts of the search space: a global choice with its problem, and the nodes into which proofs divide it.

[Note: forward prefetch depth]
How far ahead forward gathers are issued is a decision like the others, but proofs are far stronger without it: an
operation that waits for one of several alternative gathers gets hardly any bound from a linear relaxation. Earlier
gathers never delay anything in forward (nothing else uses the shard link there), and deeper prefetch never needs
less memory. So the times of the deepest prefetch, its gathers costing the CPU nothing, together with the memory of
the implicit one bound all depths from below: one *relaxed* problem for each backward depth. Only where its bound
does not decide are the depths looked at one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.candidates import Candidate
from planner.costs import CostModel
from planner.extent import require_exact
from planner.knobs import MAX_DEPTH, decisions_of, num_micro_batches, open_knobs, prefetch_targets
from planner.problem import problem_of
from planner.program.build import build_program
from planner.program.choices import Choice, Decision
from planner.program.events import Operation, OperationKind, Program
from planner.program.inputs import local_shards, step_inputs
from planner.program.step import StepInputs
from planner.schema import Decisions, PlanRequest
from solver.schedule.bounds import StaticBounds
from solver.schedule.heuristic import Heuristic
from solver.schedule.problem import Activity, Assignment, Barrier, Problem
from solver.schedule.restrict import restrict
from solver.schedule.search import Limits, least_memory

_LEAST_MEMORY = Limits(deterministic_time=2.0, wall_clock_s=60.0)
_GATHERS = (OperationKind.COPY_IN, OperationKind.ALL_GATHER)


@dataclass(slots=True, kw_only=True, eq=False)
class OpenCandidate:
    """A global choice with its problem and the best assignment known for it."""

    candidate: Candidate
    costs: CostModel
    inputs: StepInputs
    decisions: tuple[Decision, ...]
    problem: Problem
    optimizer_ns: int
    heuristic: Heuristic
    least_bytes: int = 0
    """No plan of this choice needs less memory; worked out only where the heuristic finds none that fits."""

    @property
    def can_fit(self) -> bool:
        """Whether some plan may keep the budget."""
        return self.least_bytes <= self.costs.budget.budget_bytes

    def unpack(self, request: PlanRequest, assignment: Assignment) -> Decisions:
        """An assignment as the decisions of a plan."""
        return decisions_of(request, self.candidate, self.decisions, assignment)

    def decision(self, name: str) -> int | None:
        """Number of a decision; None when the request leaves no choice."""
        return next((n for n, decision in enumerate(self.decisions) if decision.name == name), None)

    def values(self, name: str) -> list[dict[int, int]]:
        """Every way to take one decision; one empty way when there is no choice."""
        number = self.decision(name)
        if number is None:
            return [{}]
        return [{number: value} for value in range(len(self.decisions[number].labels))]


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """A global choice with some of its decisions taken, and what is proven about it."""

    item: OpenCandidate
    fixed: dict[int, int]
    problem: Problem
    lower_bound: int
    """On the micro-batch, for plans of this part within the budget."""
    is_relaxed: bool
    """The problem bounds all forward prefetch depths, see the note above."""
    attempts: int = 0
    is_finished: bool = False
    """CP-SAT solved the problem to the accepted gap, or proved that it has no solution below the cutoff."""
    is_empty: bool = False
    """Nothing in it improves the incumbent."""


def open_candidate(request: PlanRequest, candidate: Candidate) -> OpenCandidate:
    """Build the problem of one global choice."""
    costs = CostModel.of(request, candidate.mesh)
    parts = candidate.partition
    shards = local_shards(parts, candidate.mesh.shard)
    inputs = step_inputs(
        parts,
        request.workload,
        shard=candidate.mesh.shard,
        optimizer_bytes=sum(costs.optimizer_state_bytes(*entry) for entry in shards),
        optimizer_transient_bytes=costs.optimizer_transient_bytes(shards),
    )
    knobs, decisions = open_knobs(request, candidate)
    program = build_program(inputs, knobs, costs)
    optimizer_ns = costs.optimizer_ns(shards)
    require_exact(program, costs.sources(), num_micro_batches=num_micro_batches(request), optimizer_ns=optimizer_ns)
    problem = problem_of(program, decisions, budget_bytes=costs.budget.budget_bytes)
    return OpenCandidate(
        candidate=candidate,
        costs=costs,
        inputs=inputs,
        decisions=decisions,
        problem=problem,
        optimizer_ns=optimizer_ns,
        heuristic=Heuristic(problem, seed=request.search.seed),
    )


def find_least_memory(item: OpenCandidate) -> None:
    """Bound the memory of a global choice from below, and offer its heuristic the plan that needs least.

    Raises:
        KeyboardInterrupt: a person stopped it.
    """
    result = least_memory(item.problem, item.heuristic.best, _LEAST_MEMORY)
    if result.interrupted:
        raise KeyboardInterrupt
    item.least_bytes = result.lower_bound
    if result.assignment is not None:
        item.heuristic.offer(result.assignment)


def first_nodes(request: PlanRequest, item: OpenCandidate) -> Iterator[Node]:
    """One relaxed node for each backward prefetch depth; not relaxed where the forward depth is no decision."""
    if item.decision("forward_prefetch") is None:
        problem, is_relaxed = item.problem, False
    else:
        problem, is_relaxed = _relaxed_problem(request, item), True
    for fixed in item.values("backward_prefetch"):
        yield _node(item, fixed, restrict(problem, fixed), is_relaxed=is_relaxed)


def split(node: Node) -> Iterator[Node]:
    """The forward depths of a relaxed node one by one."""
    assert node.is_relaxed
    for value in node.item.values("forward_prefetch"):
        fixed = node.fixed | value
        child = _node(node.item, fixed, restrict(node.item.problem, fixed), is_relaxed=False)
        child.lower_bound = max(child.lower_bound, node.lower_bound)
        yield child


def _node(item: OpenCandidate, fixed: dict[int, int], problem: Problem, *, is_relaxed: bool) -> Node:
    bound = StaticBounds(problem).makespan
    return Node(item=item, fixed=fixed, problem=problem, lower_bound=bound, is_relaxed=is_relaxed)


def _relaxed_problem(request: PlanRequest, item: OpenCandidate) -> Problem:
    knobs, decisions = open_knobs(request, item.candidate)
    budget_bytes = item.costs.budget.budget_bytes
    deepest = Choice.fixed(prefetch_targets(item.candidate.partition, MAX_DEPTH, ahead=True))
    earliest = build_program(item.inputs, replace(knobs, forward_prefetch=deepest), item.costs)
    leanest = build_program(item.inputs, replace(knobs, forward_prefetch=Choice.fixed(())), item.costs)
    times = problem_of(_with_free_gathers(earliest), decisions, budget_bytes=budget_bytes)
    memory = problem_of(leanest, decisions, budget_bytes=budget_bytes)
    return replace(
        times,
        steps=(
            *(step for step in times.steps if isinstance(step, Activity | Barrier)),
            *(step for step in memory.steps if not isinstance(step, Activity | Barrier)),
        ),
    )


def _with_free_gathers(program: Program) -> Program:
    return replace(
        program,
        events=tuple(
            replace(event, launches=0) if isinstance(event, Operation) and event.kind in _GATHERS else event
            for event in program.events
        ),
    )
