"""One optimizer step of a set of decisions, hook by hook."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.check.calls import Calls
from planner.check.comm import CommContext
from planner.check.costs import Shards, StepCosts
from planner.check.group import Group
from planner.check.machine import Machine, Stream
from planner.check.state import AwayState, away_state
from planner.check.structure import structural_problems
from planner.check.units import ShardedParameter, Unit, build_units
from planner.check.walk import Walk
from planner.costs.model import CostModel
from planner.schema.decisions import Decisions, GradientSync
from planner.schema.errors import InconsistentRequest
from planner.schema.model import Parameter, StateTier
from planner.schema.plan import MemoryBudget, MemoryCategory
from planner.schema.request import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What the checker finds for one rank.

    Where the knobs treat all micro-batches alike, `micro_batch_ns` is that of each of them (of one that accumulates
    when there are several). Otherwise it is that of the last one, and memory is the worst of all of them.
    """

    step_time_ns: int
    micro_batch_ns: int
    optimizer_ns: int
    reserved_bytes: int
    allocated_bytes: int
    pools_bytes: Mapping[str, int]
    by_category_bytes: Mapping[MemoryCategory, int]
    """Categories at the first moment of the allocated peak."""
    host_bytes: int
    """Host memory of offloaded units at its worst moment."""
    nvme_bytes: int
    budget: MemoryBudget
    host_budget_bytes: int
    """0 when the cluster does not say."""
    nvme_budget_bytes: int
    num_all_gathers: int
    """In one optimizer step, over all its micro-batches."""
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
    planned = request.model_copy(update={"workload": decisions.decided(request.workload)})
    return Replay(planned, decisions, costs or CostModel.of_plan(planned, decisions)).run()


def treats_alike(decisions: Decisions) -> bool:
    """Whether every micro-batch of a step does the same to parameters and gradients, apart from finding some."""
    match decisions.runtime.gradient_sync:
        case GradientSync.EVERY_MICRO_BATCH:
            always_syncs = True
        case GradientSync.ALL_REDUCE_ON_LAST:
            always_syncs = all(mesh.replicate == 1 for mesh in decisions.meshes)
        case _:
            always_syncs = False
    return always_syncs and all(unit.reshard_after_backward for unit in decisions.units)


class Replay(Walk):
    """Runs the micro-batches and the optimizer step in issue order."""

    def __init__(
        self, request: PlanRequest, decisions: Decisions, costs: StepCosts, *, machine: Machine | None = None
    ) -> None:
        calls = Calls(request, decisions)
        units = build_units(request.model, decisions, calls.planned)
        comm = CommContext.of(decisions, costs, machine or Machine(costs.launch_ns, costs.host_runs))
        super().__init__(calls, units, comm, costs)
        self.decisions = decisions
        self.model = request.model
        self._with_gradient = calls.with_gradient()
        self._state_away = self._away_state()

    def run(self) -> Recomputed:
        """Run one optimizer step."""
        self.allocate_persistent()
        num, is_alike = self.decisions.num_micro_batches, treats_alike(self.decisions)
        walks = [(True, num)] if num == 1 or is_alike else [(False, 1), (False, num - 2), (True, 1)]
        micro_batch_ns = total_ns = 0
        for is_last, times in walks:
            if times:
                micro_batch_ns = self.walk(is_last=is_last, times=times)
                total_ns += times * micro_batch_ns
        return self._recomputed(micro_batch_ns, total_ns, self._optimizer_step())

    def _recomputed(self, micro_batch_ns: int, total_ns: int, optimizer_ns: int) -> Recomputed:
        machine, comm = self.machine, self.comm
        return Recomputed(
            step_time_ns=total_ns + optimizer_ns,
            micro_batch_ns=micro_batch_ns,
            optimizer_ns=optimizer_ns,
            reserved_bytes=machine.pool_peaks.total(),
            allocated_bytes=machine.allocated_peak,
            pools_bytes={pool.value: size for pool, size in machine.pool_peaks.items() if size},
            by_category_bytes=machine.categories_at_peak,
            host_bytes=machine.host_peak_bytes,
            nvme_bytes=self._state_away.nvme_bytes,
            budget=self.costs.budget,
            host_budget_bytes=self.costs.host_budget_bytes,
            nvme_budget_bytes=self.costs.nvme_budget_bytes,
            num_all_gathers=comm.num_all_gathers,
            num_reduce_scatters=comm.num_reduce_scatters,
            num_all_reduces=comm.num_all_reduces,
        )

    def allocate_persistent(self) -> None:
        """What is there when the first micro-batch that is walked starts."""
        machine = self.machine
        for unit in self.units:
            shards = [] if unit.is_state_away else self._shards(unit)
            state = sum(self.costs.optimizer_state_bytes(*shard) for shard in shards)
            if unit.is_on_host:
                machine.allocate_host(unit.stored_bytes + state)
            else:
                machine.allocate(Stream.COMPUTE, MemoryCategory.PARAMETERS, unit.stored_bytes)
                machine.allocate(Stream.COMPUTE, MemoryCategory.OPTIMIZER, state)
        machine.allocate_host(self._state_away.host_bytes)
        replicated = self.model.buffers_bytes + self.calls.at(self.model.inputs_bytes)
        machine.allocate(Stream.COMPUTE, MemoryCategory.BUFFERS, replicated)
        if self.decisions.num_micro_batches > 1 and treats_alike(self.decisions):
            for group in self.groups.values():
                self._allocate_gradients(group)

    def _allocate_gradients(self, group: Group) -> None:
        """Sharded gradients that an earlier micro-batch left."""
        unit = group.unit
        having = {unit.flat_of[one.name].name for one in unit.parameters if self._gets_gradient(unit, one)}
        for flat in unit.flats:
            if flat.name not in having:
                continue
            group.reduction.sharded_gradients.add(flat.name)
            if unit.is_on_host:
                self.machine.allocate_host(flat.stored_bytes)
            else:
                pool = group.reduction.gradient_pool(flat)
                self.machine.allocate(pool, MemoryCategory.GRADIENTS, flat.stored_bytes)

    def _shards(self, *units: Unit) -> list[tuple[str, Parameter, int]]:
        """What the optimizer steps: parameters without a gradient have no state, and are passed over."""
        elements = {
            p.name: p.shard_elements for unit in units for p in unit.parameters if self._gets_gradient(unit, p)
        }
        return [
            (name, parameter, elements[name])
            for name, parameter in self.model.iter_parameters()
            if name in elements
        ]

    def _gets_gradient(self, unit: Unit, parameter: ShardedParameter) -> bool:
        is_filled = self.comm.reduces_unused and parameter.requires_grad and unit.runs
        return is_filled or parameter.name in self._with_gradient

    def _optimizer_step(self) -> int:
        """Time of the step: shards on the device, beside them those with state away, then those in host memory."""
        on_device = self._shards(*(unit for unit in self.units if not (unit.is_on_host or unit.is_state_away)))
        on_host = self._shards(*(unit for unit in self.units if unit.is_on_host))
        transient_bytes = self.costs.optimizer_transient_bytes(on_device)
        self.machine.touch(Stream.COMPUTE, {MemoryCategory.TRANSIENTS: transient_bytes})
        self.machine.touch_host(self.costs.optimizer_transient_bytes(on_host) + self._state_away.transient_bytes)
        beside_ns = max(_device_ns(self.costs, on_device), self._state_away.step_ns)
        return beside_ns + (self.costs.cpu_optimizer_ns(on_host) if on_host else 0)

    def _away_state(self) -> AwayState:
        """Units step in the order in which their first parameters are registered."""
        places = {name: place for place, (name, _) in enumerate(self.model.iter_parameters())}
        units = [shards for unit in self.units if unit.is_state_away and (shards := self._shards(unit))]
        units.sort(key=lambda shards: places[shards[0][0]])
        tiers = {unit.plan.optimizer_tier for unit in self.units if unit.is_state_away}
        return away_state(units, on_nvme=StateTier.NVME in tiers, costs=self.costs)


def _device_ns(costs: StepCosts, shards: Shards) -> int:
    return costs.optimizer_ns(shards) if shards else 0
