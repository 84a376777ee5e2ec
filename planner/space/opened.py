"""A global choice opened for the solver, and a relaxed problem that bounds it under all settings at once.

[Note: settings]
How far ahead forward gathers are issued (the Note of `planner.space.prefetch`), and how many reduce-scatter inputs
may wait, are enumerated. Earlier
gathers never delay anything in forward (nothing else uses the shard link there), and more inputs in flight never
delay anything either; both only take more memory. So the times of the deepest prefetch, its gathers costing the CPU
nothing, and of the most inputs, together with the memory of the implicit prefetch and of one input, bound all of
these settings from below. The backward depth and the reduce-scatter group are not relaxed: gathers of deeper
backward prefetch compete with reduce-scatters, and can be slower.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

from planner.costs import CostModel
from planner.costs.demands import Demands
from planner.extent import require_exact
from planner.program.build import build_program
from planner.program.choices import Choice, Decision
from planner.program.events import Allocate, Operation, OperationKind, Program
from planner.program.inputs import micro_batches, step_inputs
from planner.program.step import Knobs, PrefetchTargets, StepInputs
from planner.schema import (
    Decisions,
    Objective,
    PlanRequest,
)
from planner.schema.base import MAX_INTEGER
from planner.simulate.host import Change, HostMemory, host_changes, offloaded_activations
from planner.space.candidate import Candidate, num_micro_batches
from planner.space.floor import floor_bytes, floor_ns
from planner.space.knobs import decisions_of, forward_prefetch, open_knobs
from planner.space.offload import Offload
from planner.space.problem import Runs, problem_of
from planner.space.settings import Setting
from planner.space.sharding import Sharding
from solver.schedule.heuristic import Heuristic
from solver.schedule.problem import Aim, Assignment, Evaluation, Problem, Reserve
from solver.schedule.restrict import combine

_GATHERS = (OperationKind.COPY_IN, OperationKind.ALL_GATHER)


@dataclass(eq=False)
class OpenCandidate:
    """A global choice under one setting, with its problem and the best assignment known for it."""

    candidate: Candidate
    costs: CostModel
    inputs: StepInputs
    knobs: Knobs
    decisions: tuple[Decision, ...]
    problem: Problem
    optimizer_ns: int

    @cached_property
    def heuristic(self) -> Heuristic:
        """The best assignment known, and how to find better ones."""
        return Heuristic(self.problem)

    def step_ns(self, evaluation: Evaluation) -> int:
        """Time of a step, the optimizer's among it."""
        return evaluation.makespan + self.optimizer_ns

    def value(self, problem_value: int) -> int:
        """What the problem minimises, as a property of the whole step."""
        return problem_value + (self.optimizer_ns if self.problem.aim is Aim.MAKESPAN else 0)

    def unpack(self, request: PlanRequest, assignment: Assignment) -> Decisions:
        """An assignment as the decisions of a plan."""
        return decisions_of(request, self.candidate, self.knobs, assignment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is minimised, and what bounds it."""

    aim: Aim = Aim.MAKESPAN
    is_budgeted: bool = True
    """Plans keep the memory budget."""
    step_time_ns: int | None = None
    """Plans keep this step time."""

    @classmethod
    def of(cls, request: PlanRequest) -> "Goal":
        """The goal of a request."""
        aim = Aim.MAKESPAN if request.objective is Objective.STEP_TIME else Aim.PEAK
        return cls(aim=aim, step_time_ns=request.limits.step_time_ns)


class Opening:
    """What all settings of a mesh with a grouping share."""

    def __init__(self, candidate: Candidate, sharding: Sharding, goal: Goal) -> None:
        """Work out sizes, and the optimizer."""
        parts = candidate.partition
        request = sharding.request
        self._goal = goal
        self._request = request.model_copy(update={"model": parts.model})
        self._sharding = sharding
        self.costs = sharding.costs
        self._parts: dict[Offload, Opening] = {}
        self._share(candidate)
        self.inputs = step_inputs(
            parts,
            request.workload,
            meshes=candidate.meshes,
            optimizer_bytes=self._leanest.device_bytes,
            optimizer_transient_bytes=self._leanest.transient_bytes,
            known=sharding.known_sizes,
        )

    def _share(self, candidate: Candidate) -> None:
        """What depends on the units in host memory; of a family the fastest and the leanest that any set may be."""
        self._fastest = self._sharding.state(candidate, candidate.offload.least)
        self._leanest = self._sharding.state(candidate, candidate.offload.most)
        self.optimizer_ns = max(self._leanest.device_ns, self._fastest.away_ns) + self._fastest.host_ns
        self._floors_bytes: dict[tuple[object, ...], int] = {}
        """By what the knobs of a candidate depend on, besides what all settings of the opening share."""

    def part(self, candidate: Candidate) -> "Opening":
        """The same with other units in host memory."""
        offload = candidate.offload
        if offload not in self._parts:
            self._parts[offload] = part = copy(self)
            part._share(candidate)
            part.inputs = replace(
                self.inputs,
                optimizer_bytes=part._leanest.device_bytes,
                optimizer_transient_bytes=part._leanest.transient_bytes,
            )
        return self._parts[offload]

    @property
    def aim(self) -> Aim:
        """What is minimised."""
        return self._goal.aim

    @property
    def deadline_ns(self) -> int | None:
        """Bound on the step."""
        return self._goal.step_time_ns

    def open(self, candidate: Candidate) -> OpenCandidate:
        """The problem of a global choice under its setting."""
        knobs, decisions = self._knobs(candidate)
        problem = self._problem(self._programs(knobs), knobs, decisions, candidate)
        return self._opened(candidate, knobs, decisions, problem)

    def floor_ns(self, candidate: Candidate) -> int | None:
        """No plan of a global choice has a faster step; None where none can fit.

        Raises:
            NoValueLeft: the fixed choices leave some knob nothing.
        """
        budget = self.costs.budget.budget_bytes if self._goal.is_budgeted else MAX_INTEGER
        if not self._request.fixed and self._state_bytes(candidate) > budget:
            return None
        knobs, _ = self._knobs(candidate)
        certain = self._certain(candidate, knobs)
        if not self._fits_on_host(replace(knobs, on_host=certain)):
            return None
        if self.aim is not Aim.MAKESPAN and self.deadline_ns is None:
            return None if self.floor_bytes(candidate) > budget else self.optimizer_ns
        num = num_micro_batches(self._request)
        floor = floor_ns(self.inputs, knobs, self.costs, num, budget, on_host=certain)
        return None if floor is None else floor + self.optimizer_ns

    def _state_bytes(self, candidate: Candidate) -> int:
        """What units that are not on the host have on the device at the end of a step, whatever is decided."""
        return self._leanest.device_bytes + sum(
            size.stored + size.sharded_gradients
            for size, is_on_host in zip(self.inputs.sizes, candidate.on_host, strict=True)
            if not is_on_host
        )

    def _fits_on_host(self, knobs: Knobs) -> bool:
        """Whether a rank's share of the host's memory, and drives, holds what is off the device."""
        places = micro_batches(knobs, num_micro_batches(self._request))
        activations = offloaded_activations(self.inputs, knobs)
        changes: tuple[Change, ...] = ()
        if activations and any(knobs.on_host):
            last, _ = places[-1]
            found = [unit for unit in range(len(self.inputs.sizes)) if last.finds_sharded_gradients(unit)]
            changes = host_changes(self.inputs, build_program(self.inputs, last, self.costs), found)
        memory = HostMemory.of(
            (
                (size, any(place.finds_sharded_gradients(unit) for place, _ in places))
                for unit, size in enumerate(self.inputs.sizes)
                if knobs.is_on_host(unit)
            ),
            optimizer_bytes=self._fastest.host_bytes,
            activations=activations,
            optimizer_transient_bytes=self._fastest.host_transient_bytes,
            changes=changes,
            off_device=self._fastest.away,
        )
        if self._fastest.away.nvme_bytes > self.costs.nvme_budget_bytes:
            return False
        return not memory.total_bytes or memory.total_bytes <= self.costs.host_budget_bytes

    def floor_bytes(self, candidate: Candidate) -> int:
        """No plan of a global choice needs less device memory."""
        key = (candidate.gradient_sync, candidate.keeps_gathered, candidate.alias_gathers, candidate.setting)
        if key not in self._floors_bytes:
            knobs, _ = self._knobs(candidate)
            found = floor_bytes(self.inputs, knobs, self.costs, num_micro_batches(self._request))
            self._floors_bytes[key] = found
        return self._floors_bytes[key]

    def relaxed(self, candidate: Candidate, members: Sequence[Setting]) -> OpenCandidate:
        """See the note above. Of a family the times are those of its smallest set, the memory that of its largest
        without what copies from the host take on the device.
        """
        if len(members) == 1 and candidate.offload.is_one:
            return self.open(candidate.with_setting(members[0]))
        knobs, decisions = self._knobs(candidate.with_setting(members[0]))
        deepest, shallowest = (pick(members, key=lambda setting: setting.reach) for pick in (max, min))
        most = max(setting.reduce_buffers for setting in members)
        fast = replace(
            knobs,
            forward_prefetch=self._forward(candidate, deepest),
            reduce_scatter_max_input_buffers=most,
            on_host=self._certain(candidate, knobs),
        )
        lean = replace(
            knobs,
            forward_prefetch=self._forward(candidate, shallowest),
            reduce_scatter_max_input_buffers=min(setting.reduce_buffers for setting in members),
        )
        free = [(_with_free_gathers(program), num) for program, num in self._programs(fast)]
        kept = self._programs(lean)
        if not candidate.offload.is_one:
            kept = [(_without_copies_from_host(program), num) for program, num in kept]
        times = self._problem(free, knobs, decisions, candidate)
        memory = self._problem(kept, knobs, decisions, candidate)
        return self._opened(candidate, knobs, decisions, combine(times, memory))

    def _forward(self, candidate: Candidate, setting: Setting) -> Choice[PrefetchTargets]:
        prefetch = forward_prefetch(candidate, self.inputs.sizes, self.costs)
        return Choice.fixed(prefetch.targets(setting.forward_prefetch, setting.gather_limit))

    def _certain(self, candidate: Candidate, knobs: Knobs) -> tuple[bool, ...]:
        """Per unit, whether it is in host memory in every set of a family."""
        least = candidate.offload.least
        return tuple(flag and unit in least for unit, flag in enumerate(knobs.on_host))

    def _knobs(self, candidate: Candidate) -> tuple[Knobs, tuple[Decision, ...]]:
        return open_knobs(self._request, candidate, self.inputs.sizes, self.costs)

    def _programs(self, knobs: Knobs) -> Runs:
        runs = num_micro_batches(self._request)
        places = micro_batches(knobs, runs)
        programs = [(build_program(self.inputs, place, self.costs), num) for place, num in places]
        for program, _ in programs:
            require_exact(program, self.costs.sources(), num_micro_batches=runs, optimizer_ns=self.optimizer_ns)
        return programs

    def _problem(
        self, programs: Runs, knobs: Knobs, decisions: tuple[Decision, ...], candidate: Candidate
    ) -> Problem:
        demands = Demands(separate_reduce_scatter_group=candidate.setting.separate_group)
        taken = self.costs.taken_bytes(demands) + (0 if self._goal.is_budgeted else self.costs.reserved_bytes)
        reserves = (*([Reserve(amount=taken)] if taken else ()), *self._communicators(knobs))
        return problem_of(
            programs,
            decisions,
            aim=self.aim,
            budget_bytes=self.costs.budget.budget_bytes if self._goal.is_budgeted else None,
            deadline_ns=None if self.deadline_ns is None else self.deadline_ns - self.optimizer_ns,
            reserves=reserves,
        )

    def _communicators(self, knobs: Knobs) -> Iterator[Reserve]:
        """Of each unit that is resharded in part."""
        for choice in knobs.reshard:
            for value, when in choice:
                if not isinstance(value, bool):
                    amount = self.costs.partial_reshard_bytes(value)
                    yield Reserve(amount=amount, when=tuple((literal.decision, literal.value) for literal in when))

    def _opened(
        self, candidate: Candidate, knobs: Knobs, decisions: tuple[Decision, ...], problem: Problem
    ) -> OpenCandidate:
        return OpenCandidate(
            candidate=candidate,
            costs=self.costs,
            inputs=self.inputs,
            knobs=knobs,
            decisions=decisions,
            problem=problem,
            optimizer_ns=self.optimizer_ns,
        )


def _with_free_gathers(program: Program) -> Program:
    return replace(
        program,
        events=tuple(
            replace(event, launches=0) if isinstance(event, Operation) and event.kind in _GATHERS else event
            for event in program.events
        ),
    )


def _without_copies_from_host(program: Program) -> Program:
    """Where the buffers of shards that come from the host (`H`), or are cast there (`C`), take nothing."""
    return replace(
        program,
        events=tuple(
            replace(event, size_bytes=0) if isinstance(event, Allocate) and event.buffer[0] in "HC" else event
            for event in program.events
        ),
    )
