"""The search: a problem per global choice, heuristics on all, CP-SAT where the bound leaves room."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from planner.candidates import Candidate, allowed_values, allows, candidates, refuse_unknown_knobs
from planner.costs import CostModel
from planner.problem import problem_of
from planner.program.build import Knobs, PrefetchTargets, build_program
from planner.program.choices import Choice, Decision
from planner.program.inputs import casts_output, local_shards, step_inputs
from planner.program.units import ROOT, Partition
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    Call,
    CallRole,
    ClientFeature,
    Decisions,
    PlanRequest,
    UnitPlan,
)
from solver.schedule.bounds import StaticBounds
from solver.schedule.heuristic import Heuristic
from solver.schedule.problem import Assignment, Problem
from solver.schedule.search import Limits, Result, least_memory, prove
from solver.schedule.tidy import tidy

MAX_DEPTH = 2
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a running search."""

    elapsed_s: float
    incumbent_ns: int | None
    """Best step time so far."""
    bound_ns: int | None
    """No plan is faster than this."""
    message: str


OnProgress = Callable[[Progress], None]


@dataclass(slots=True, kw_only=True)
class OpenCandidate:
    """A global choice with its problem and what is known about it."""

    candidate: Candidate
    costs: CostModel
    decisions: tuple[Decision, ...]
    problem: Problem
    optimizer_ns: int
    heuristic: Heuristic
    lower_bound: int
    """On the micro-batch, for plans within the budget."""
    proven: bool = False

    def unpack(self, request: PlanRequest, assignment: Assignment) -> Decisions:
        """An assignment as the decisions of a plan."""
        return decisions_of(request, self.candidate, self.decisions, assignment)


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


def search(request: PlanRequest, on_progress: OnProgress | None = None) -> Found:
    """Least step time over all global choices and all decisions in them."""
    return _Search(request, on_progress).run()


@dataclass(slots=True)
class _Search:
    request: PlanRequest
    on_progress: OnProgress | None
    started: float = field(default_factory=monotonic)
    open: list[OpenCandidate] = field(default_factory=list)
    best: OpenCandidate | None = None
    assignment: Assignment | None = None
    micro_batch_ns: int | None = None
    spent: float = 0.0
    struck: bool = False
    num_solved: int = 0

    def run(self) -> Found:
        self._open_all()
        self.open.sort(key=lambda item: (not item.heuristic.feasible, self._step_ns(item, item.heuristic)))
        for item in self.open:
            if item.heuristic.feasible:
                self._offer(item, item.heuristic.best, item.heuristic.evaluation.makespan)
        for item in self.open:
            if not self._worth_solving(item):
                continue
            self._solve(item)
            if self.struck or self.spent >= self.request.search.deterministic_time:
                break
        self._tidy()
        return Found(
            best=self.best,
            assignment=self.assignment,
            lower_bound_ns=self._bound(),
            all_candidates=tuple(self.open),
            num_pruned=len(self.open) - self.num_solved,
            deterministic_time=round(self.spent, 6),
            wall_clock_struck=self.struck,
        )

    def _tidy(self) -> None:
        """Spend half of the accepted gap on a plan that a person can read."""
        if self.best is None or self.assignment is None or self.micro_batch_ns is None:
            return
        slack = int(self.micro_batch_ns * self.request.search.gap / 2)
        self.assignment = tidy(self.best.problem, self.assignment, slack=slack)
        self.micro_batch_ns = self.best.heuristic.evaluate(self.assignment).makespan

    def _open_all(self) -> None:
        knobs: set[str] = set()
        for candidate in candidates(self.request):
            item = open_candidate(self.request, candidate)
            knobs.update(knob_names(candidate))
            item.heuristic.run(max_evaluations=_evaluations(item.problem))
            self.open.append(item)
            self._report(f"trying {candidate.label}")
        refuse_unknown_knobs(self.request.fixed, knobs)

    @property
    def num_micro_batches(self) -> int:
        return num_micro_batches(self.request)

    def _step_ns(self, item: OpenCandidate, heuristic: Heuristic) -> int:
        return self.num_micro_batches * heuristic.evaluation.makespan + item.optimizer_ns

    def _incumbent(self) -> int | None:
        if self.best is None or self.micro_batch_ns is None:
            return None
        return self.num_micro_batches * self.micro_batch_ns + self.best.optimizer_ns

    def _offer(self, item: OpenCandidate, assignment: Assignment, micro_batch_ns: int) -> None:
        incumbent = self._incumbent()
        if incumbent is None or self.num_micro_batches * micro_batch_ns + item.optimizer_ns < incumbent:
            self.best, self.assignment, self.micro_batch_ns = item, assignment, micro_batch_ns

    def _target(self, item: OpenCandidate) -> int | None:
        """Micro-batch time that would improve the incumbent by more than half of the accepted gap."""
        incumbent = self._incumbent()
        if incumbent is None:
            return None
        wanted = min(incumbent - 1, int(incumbent * (1 - self.request.search.gap / 2)))
        return (wanted - item.optimizer_ns) // self.num_micro_batches

    def _worth_solving(self, item: OpenCandidate) -> bool:
        target = self._target(item)
        return target is None or item.lower_bound <= target

    def _solve(self, item: OpenCandidate) -> None:
        self.num_solved += 1
        search = self.request.search
        limits = Limits(
            deterministic_time=max(0.01, search.deterministic_time - self.spent),
            relative_gap=search.gap / 2,
            wall_clock_s=max(0.1, search.wall_clock_s - (monotonic() - self.started)),
            seed=search.seed,
        )
        cutoff = self._target(item)
        result = prove(
            item.problem,
            item.heuristic.best,
            limits,
            cutoff=cutoff,
            on_progress=lambda *_: self._report(f"proving {item.candidate.label}"),
        )
        self._account(item, result)
        self._report(f"proved {item.candidate.label}")

    def _account(self, item: OpenCandidate, result: Result) -> None:
        self.spent += result.deterministic_time
        self.struck = self.struck or result.wall_clock_struck
        item.lower_bound = max(item.lower_bound, result.lower_bound)
        item.proven = result.status in ("optimal", "infeasible")
        if result.assignment is not None and result.evaluation is not None:
            self._offer(item, result.assignment, result.evaluation.makespan)

    def _bound(self) -> int:
        incumbent = self._incumbent()
        bound = min(self.num_micro_batches * item.lower_bound + item.optimizer_ns for item in self.open)
        return bound if incumbent is None else min(bound, incumbent)

    def _report(self, message: str) -> None:
        if self.on_progress is not None:
            self.on_progress(
                Progress(
                    elapsed_s=monotonic() - self.started,
                    incumbent_ns=self._incumbent(),
                    bound_ns=self._bound() if self.open else None,
                    message=message,
                )
            )


def num_micro_batches(request: PlanRequest) -> int:
    """Micro-batches per rank and step."""
    workload = request.workload
    return workload.global_batch // (workload.micro_batch * request.cluster.num_devices)


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
    problem = problem_of(program, decisions, budget_bytes=costs.budget.budget_bytes)
    return OpenCandidate(
        candidate=candidate,
        costs=costs,
        decisions=decisions,
        problem=problem,
        optimizer_ns=costs.optimizer_ns(shards),
        heuristic=Heuristic(problem, seed=request.search.seed),
        lower_bound=StaticBounds(problem).makespan,
    )


def open_knobs(request: PlanRequest, candidate: Candidate) -> tuple[Knobs, tuple[Decision, ...]]:
    """All knobs that the request leaves open, as choices among numbered decisions."""
    decisions: list[Decision] = []

    def decide(name: str, family: str, values: tuple[object, ...]) -> Choice[object]:
        left = allowed_values(request, name, values)
        if len(left) == 1:
            return Choice.fixed(left[0])
        decisions.append(Decision(name=name, family=family, labels=tuple(map(str, left))))
        return Choice.among(len(decisions) - 1, left)

    parts = candidate.partition
    reshard: list[Choice[bool]] = [Choice.fixed(False)]
    reshard.extend(
        decide(f"{unit.modules[0]}.reshard_after_forward", "reshard", (True, False))  # type: ignore[misc]
        for unit in parts.units[1:]
    )
    activation: dict[int, Choice[ActivationPolicy]] = {}
    if allows(request, ClientFeature.CHECKPOINT_FULL):
        for call, entry in enumerate(parts.model.calls):
            if _can_checkpoint(parts, entry):
                activation[call] = decide(  # type: ignore[assignment]
                    f"{entry.path}.activation", "activation", (ActivationPolicy.NONE, ActivationPolicy.FULL)
                )
    depths = (0, *range(1, MAX_DEPTH + 1)) if _prefetches(request, candidate) else (0,)
    forward = decide("forward_prefetch", "forward_prefetch", depths)
    backward = decide("backward_prefetch", "backward_prefetch", tuple(d for d in depths if d != 1))
    return (
        Knobs(
            shard=candidate.mesh.shard,
            replicate=candidate.mesh.replicate,
            reshard=tuple(reshard),
            activation=activation,
            forward_prefetch=_targets(parts, forward, ahead=True),
            backward_prefetch=_targets(parts, backward, ahead=False),
            casts_output=casts_output(request.workload.precision),
            accumulates=num_micro_batches(request) > 1,
        ),
        tuple(decisions),
    )


def knob_names(candidate: Candidate) -> set[str]:
    """Knobs of the modules of a global choice, open or fixed."""
    parts = candidate.partition
    return {
        *(f"{unit.modules[0]}.reshard_after_forward" for unit in parts.units[1:]),
        *(f"{entry.path}.activation" for entry in parts.model.calls if _can_checkpoint(parts, entry)),
    }


def _can_checkpoint(parts: Partition, call: Call) -> bool:
    kind = parts.model.kinds[call.kind]
    return kind.role is CallRole.BLOCK and kind.full is not None


def _prefetches(request: PlanRequest, candidate: Candidate) -> bool:
    return (
        candidate.mesh.shard > 1
        and allows(request, ClientFeature.PREFETCH)
        and len(candidate.partition.passes) > MAX_DEPTH
    )


def _targets(parts: Partition, depth: Choice[object], *, ahead: bool) -> Choice[PrefetchTargets]:
    return Choice(tuple((prefetch_targets(parts, int(str(value)), ahead=ahead), when) for value, when in depth))


def prefetch_targets(parts: Partition, depth: int, *, ahead: bool) -> PrefetchTargets:
    """Per unit, the next `depth` units in the order of the pass; nothing at depth 0 (FSDP2's default)."""
    if not depth:
        return ()
    order = [run.unit for run in parts.passes]
    if not ahead:
        order.reverse()
    lists: list[tuple[int, ...]] = [()] * len(parts.units)
    lists[ROOT] = tuple(order[:depth])
    for position, unit in enumerate(order):
        lists[unit] = tuple(order[position + 1 : position + 1 + depth])
    return tuple(lists)


def decisions_of(
    request: PlanRequest, candidate: Candidate, decisions: tuple[Decision, ...], assignment: Assignment
) -> Decisions:
    """Write an assignment in the words of the contract."""
    knobs, _ = open_knobs(request, candidate)
    chosen = dict(enumerate(assignment))

    def value(choice: Choice[Value]) -> Value:
        return next(option for option, when in choice if all(chosen[part.decision] == part.value for part in when))

    parts = candidate.partition
    forward = value(knobs.forward_prefetch)
    backward = value(knobs.backward_prefetch)
    units = []
    for number in [*range(1, len(parts.units)), ROOT]:
        unit = parts.units[number]
        units.append(
            UnitPlan(
                modules=unit.modules,
                reshard_after_forward=None if number == ROOT else value(knobs.reshard[number]),
                forward_prefetch=_names(parts, forward, number),
                backward_prefetch=_names(parts, backward, number),
                num_parameters=sum(p.num_elements for _, p in unit.parameters),
            )
        )
    precision = request.workload.precision
    return Decisions(
        mesh=candidate.mesh,
        units=tuple(units),
        activations=tuple(
            ActivationPlan(module=parts.model.calls[call].path, policy=ActivationPolicy.FULL)
            for call, choice in knobs.activation.items()
            if value(choice) is ActivationPolicy.FULL
        ),
        param_dtype=precision.param_dtype,
        reduce_dtype=precision.reduce_dtype,
        output_dtype=precision.output_dtype,
        cast_forward_inputs=precision.cast_forward_inputs,
        micro_batch=request.workload.micro_batch,
        num_micro_batches=num_micro_batches(request),
    )


def _names(parts: Partition, targets: PrefetchTargets, unit: int) -> tuple[str, ...]:
    return tuple(parts.units[target].modules[0] for target in targets[unit]) if targets else ()


def _evaluations(problem: Problem) -> int:
    """Evaluations that the heuristic may spend on one global choice; fewer where each costs more."""
    return max(60, min(400, 400_000 // max(1, len(problem.steps))))


def least_memory_of(items: tuple[OpenCandidate, ...], limits: Limits) -> Iterator[tuple[OpenCandidate, Result]]:
    """Least memory of each global choice."""
    for item in items:
        yield item, least_memory(item.problem, item.heuristic.best, limits)
