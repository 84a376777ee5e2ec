"""One optimizer step of a set of decisions, hook by hook."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from planner.check.calls import Calls
from planner.check.group import CollectiveCosts, CommContext, Group
from planner.check.machine import Link, Machine, Stream
from planner.check.structure import structural_problems
from planner.check.units import ShardedParameter, Unit, build_units, enter_order, leave_order
from planner.costs.model import CostModel
from planner.schema.errors import InconsistentRequest
from planner.schema.model import Parameter
from planner.schema.plan import Decisions, MemoryBudget, MemoryCategory
from planner.schema.request import PlanRequest


class StepCosts(CollectiveCosts, Protocol):
    """Durations and sizes that a step is made of; `CostModel` is one."""

    @property
    def launch_ns(self) -> int:
        """CPU time to issue one kernel."""

    @property
    def all_reduce_shares_link(self) -> bool:
        """Whether all-reduces follow the other collectives on one link."""

    @property
    def budget(self) -> MemoryBudget:
        """Device memory for training tensors."""

    def forward_ns(self, kind: str, /) -> int:
        """Forward of a call."""

    def backward_ns(self, kind: str, /) -> int:
        """Backward of a call without recomputation."""

    def recompute_ns(self, kind: str, /) -> int:
        """Recomputation of a checkpointed call."""

    def forward_kernels(self, kind: str, /) -> int:
        """Kernels of the forward of a call."""

    def backward_kernels(self, kind: str, /) -> int:
        """Kernels of the backward of a call."""

    def recompute_kernels(self, kind: str, /) -> int:
        """Kernels of the recomputation of a call."""

    def optimizer_state_bytes(self, name: str, parameter: Parameter, shard_elements: int, /) -> int:
        """Optimizer state of a shard."""

    def optimizer_ns(self, shards: Sequence[tuple[str, Parameter, int]], /) -> int:
        """Optimizer step over (name, parameter, elements on this rank)."""

    def optimizer_transient_bytes(self, shards: Sequence[tuple[str, Parameter, int]], /) -> int:
        """Memory of the optimizer step beyond state and gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What the checker finds for one rank; counts are per micro-batch."""

    step_time_ns: int
    micro_batch_ns: int
    optimizer_ns: int
    reserved_bytes: int
    allocated_bytes: int
    pools_bytes: Mapping[str, int]
    by_category_bytes: Mapping[MemoryCategory, int]
    """Categories at the first moment of the allocated peak."""
    budget: MemoryBudget
    num_all_gathers: int
    num_reduce_scatters: int
    num_all_reduces: int


def recompute(request: PlanRequest, decisions: Decisions, costs: StepCosts | None = None) -> Recomputed:
    """Time and memory of a plan's decisions or of a configuration written by hand.

    Args:
        request: model, cluster, workload and profile.
        decisions: what the client would apply.
        costs: durations and sizes; the request's own cost model unless given.

    Raises:
        InconsistentRequest: the decisions do not fit the request, or use what is not modelled.
    """
    problems = structural_problems(request, decisions)
    if problems:
        raise InconsistentRequest("; ".join(problems))
    return Replay(request, decisions, costs or CostModel.of(request, decisions.mesh)).run()


class Replay:
    """Runs forward, backward, final callback and optimizer step in issue order."""

    def __init__(
        self, request: PlanRequest, decisions: Decisions, costs: StepCosts, *, machine: Machine | None = None
    ) -> None:
        self.machine = machine or Machine(costs.launch_ns)
        self.costs = costs
        self.decisions = decisions
        self.model = request.model
        self.units = build_units(self.model, decisions)
        self.comm = CommContext(
            machine=self.machine,
            costs=costs,
            mesh=decisions.mesh,
            all_reduce_link=Link.SHARD if costs.all_reduce_shares_link else Link.REPLICATE,
            max_input_buffers=decisions.runtime.reduce_scatter_max_input_buffers,
            is_accumulating=decisions.num_micro_batches > 1,
        )
        self.groups = {
            unit.name: Group(unit, self.comm, is_resharded_after_forward=_reshards(unit))
            for unit in self.units
            if unit.parameters
        }
        self._root = next(unit for unit in self.units if unit.is_root)
        self._entering = _by_call((unit.first_call, unit) for unit in enter_order(self.units))
        self._leaving = _by_call((unit.last_call, unit) for unit in leave_order(self.units))
        self._owners = {
            parameter.name: (self.groups[unit.name], parameter)
            for unit in self.units
            for parameter in unit.parameters
        }
        self.calls = Calls(request, decisions)

    def run(self) -> Recomputed:
        """Run one optimizer step; later micro-batches take as long as the first."""
        self.allocate_persistent()
        self.forward()
        self.backward()
        self.final_callback()
        machine, shards = self.machine, self._shards()
        micro_batch_ns = max(machine.time_ns(Stream.COMPUTE), machine.cpu_ns)
        optimizer_ns = self.costs.optimizer_ns(shards)
        transient_bytes = self.costs.optimizer_transient_bytes(shards)
        machine.touch(Stream.COMPUTE, {MemoryCategory.TRANSIENTS: transient_bytes})
        return Recomputed(
            step_time_ns=self.decisions.num_micro_batches * micro_batch_ns + optimizer_ns,
            micro_batch_ns=micro_batch_ns,
            optimizer_ns=optimizer_ns,
            reserved_bytes=machine.pool_peaks.total(),
            allocated_bytes=machine.allocated_peak,
            pools_bytes={pool.value: size for pool, size in machine.pool_peaks.items() if size},
            by_category_bytes=machine.categories_at_peak,
            budget=self.costs.budget,
            num_all_gathers=self.comm.num_all_gathers,
            num_reduce_scatters=self.comm.num_reduce_scatters,
            num_all_reduces=self.comm.num_all_reduces,
        )

    def allocate_persistent(self) -> None:
        """What is there when a micro-batch starts."""
        machine = self.machine
        parameters = [parameter for unit in self.units for parameter in unit.parameters]
        state = sum(self.costs.optimizer_state_bytes(*shard) for shard in self._shards())
        stored = sum(parameter.stored_bytes for parameter in parameters)
        machine.allocate(Stream.COMPUTE, MemoryCategory.PARAMETERS, stored)
        machine.allocate(Stream.COMPUTE, MemoryCategory.OPTIMIZER, state)
        replicated = self.model.buffers_bytes + self.calls.at(self.model.inputs_bytes)
        machine.allocate(Stream.COMPUTE, MemoryCategory.BUFFERS, replicated)
        if self.comm.is_accumulating:
            with_gradient = self.calls.with_gradient()
            for parameter in parameters:
                if parameter.name in with_gradient:
                    pool = self._gradient_pool(parameter)
                    machine.allocate(pool, MemoryCategory.GRADIENTS, parameter.stored_bytes)

    def _gradient_pool(self, parameter: ShardedParameter) -> Stream:
        is_cast_after_all_reduce = self.decisions.mesh.replicate > 1 and parameter.reduced is not parameter.storage
        return Stream.ALL_REDUCE if is_cast_after_all_reduce else Stream.REDUCE

    def _shards(self) -> list[tuple[str, Parameter, int]]:
        elements = {p.name: p.shard_elements for unit in self.units for p in unit.parameters}
        return [
            (name, parameter, elements[name])
            for name, parameter in self.model.iter_parameters()
            if parameter.tied_to is None
        ]

    def forward(self) -> None:
        """Forward of the model, then the loss."""
        self._pre_forward(self._root)
        for index in self.calls.main:
            for unit in self._entering.get(index, ()):
                self._pre_forward(unit)
            self.run_forward(index)
            for unit in self._leaving.get(index, ()):
                if group := self.groups.get(unit.name):
                    group.post_forward()
        if group := self.groups.get(self._root.name):
            group.post_forward()
        self.comm.release_deferred()
        for index in self.calls.loss:
            self.run_forward(index)

    def _pre_forward(self, unit: Unit) -> None:
        if group := self.groups.get(unit.name):
            group.pre_forward()
        self._prefetch(unit.plan.forward_prefetch)

    def _prefetch(self, names: Sequence[str]) -> None:
        for name in names:
            if target := self.groups.get(name):
                target.unshard()

    def backward(self) -> None:
        """Backward up to the final callback."""
        for index in reversed(self.calls.loss):
            self.run_backward(index)
        for index in reversed(self.calls.main):
            kind = self.calls.kind(index)
            if kind.output_requires_grad:
                for unit in self._hooked_on_output(index):
                    self._pre_backward(unit)
            self.run_backward(index)
            for unit in reversed(self._entering.get(index, ())):
                group = self.groups.get(unit.name)
                if group and kind.input_requires_grad and kind.output_requires_grad:
                    group.post_backward()

    def _hooked_on_output(self, index: int) -> list[Unit]:
        """Units whose pre-backward hooks wait for the gradient of what the call returns, as they fire.

        Hooks of one tensor fire as they were registered: inner units first, the root last. The cast to
        `output_dtype` changes nothing: only the root has one, and it registers its hook before it casts.
        """
        units = list(self._leaving.get(index, ()))
        if index == self.calls.main[-1]:
            units.append(self._root)
        return units

    def _pre_backward(self, unit: Unit) -> None:
        targets = unit.plan.backward_prefetch
        if group := self.groups.get(unit.name):
            group.pre_backward(prefetches_implicitly=not targets)
        self._prefetch(targets)

    def final_callback(self) -> None:
        """What FSDP2 does when autograd is done: the root first, then the units as registered."""
        for unit in sorted(self.units, key=lambda unit: unit.registration):
            if group := self.groups.get(unit.name):
                group.finish_backward()
        while self.comm.retained:
            self.comm.release_oldest_reduce_input()

    def run_forward(self, index: int) -> None:
        """Forward of one call."""
        calls, machine, name = self.calls, self.machine, self.calls.kind_name(index)
        for moment in calls.liveness(index).forward:
            machine.touch(Stream.COMPUTE, {MemoryCategory.TRANSIENTS: calls.at(moment.live_bytes)})
        self._compute(
            self.costs.forward_ns(name), self.costs.forward_kernels(name), host_waits=calls.host_waits(index)
        )
        machine.allocate(Stream.COMPUTE, MemoryCategory.ACTIVATIONS, calls.kept_bytes(index))

    def run_backward(self, index: int) -> None:
        """Backward of one call, after its recomputation when it is checkpointed."""
        calls, machine, name = self.calls, self.machine, self.calls.kind_name(index)
        machine.free(Stream.COMPUTE, MemoryCategory.ACTIVATIONS, calls.kept_bytes(index))
        if not calls.kind(index).output_requires_grad:
            return
        gradients = calls.gradients(index)
        for moment in calls.liveness(index).backward:
            made = self._missing(gradients[: moment.num_gradients])
            sizes = {
                MemoryCategory.TRANSIENTS: calls.at(moment.live_bytes),
                MemoryCategory.UNSHARDED_GRADIENTS: sum(parameter.gradient_bytes for _, parameter in made),
            }
            machine.touch(Stream.COMPUTE, sizes)
        if calls.is_checkpointed(index):
            self._compute(
                self.costs.recompute_ns(name),
                self.costs.recompute_kernels(name),
                host_waits=calls.host_waits(index),
            )
        self._compute(self.costs.backward_ns(name), self.costs.backward_kernels(name))
        for group, parameter in self._missing(gradients):
            group.add_gradient(parameter)

    def _missing(self, names: Sequence[str | None]) -> list[tuple[Group, ShardedParameter]]:
        """Parameters whose gradient another call has not made yet, each once."""
        owners = [self._owners[name] for name in dict.fromkeys(names) if name is not None]
        return [(group, parameter) for group, parameter in owners if parameter.name not in group.gradients]

    def _compute(self, duration_ns: int, kernels: int, *, host_waits: bool = False) -> None:
        if duration_ns or kernels:
            end_ns = self.machine.run(Stream.COMPUTE, duration_ns, kernels)
            if host_waits:
                self.machine.host_waits(end_ns)


def _reshards(unit: Unit) -> bool:
    wanted = unit.plan.reshard_after_forward
    return not unit.is_root if wanted is None else bool(wanted)


def _by_call(pairs: Iterable[tuple[int | None, Unit]]) -> dict[int, list[Unit]]:
    grouped: dict[int, list[Unit]] = {}
    for index, unit in pairs:
        if index is not None:
            grouped.setdefault(index, []).append(unit)
    return grouped
