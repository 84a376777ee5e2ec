"""What all groupings of a mesh (or two) share: the costs, and the optimizer over its shards."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from planner.costs import CostModel
from planner.costs.demands import Demands
from planner.costs.optimizer import Shard, require_adam
from planner.program.inputs import LocalShards, local_shards
from planner.program.known import KnownSizes
from planner.program.units import Partition
from planner.schema import InconsistentRequest, PlanRequest, ShardwrightError
from planner.simulate.offloaded_state import StateMemory, state_step_ns
from planner.space.candidate import Candidate
from planner.space.offload import Moved

Names = tuple[str, ...]
"""Of the parameters of a unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """What the optimizer takes on one rank."""

    device_ns: int
    host_ns: int
    """Its step on the host, after that on the device."""
    device_bytes: int
    transient_bytes: int
    host_bytes: int = 0
    host_transient_bytes: int = 0
    away_ns: int = 0
    """Its step over state that alone is off the device, beside that on the device."""
    away: StateMemory = field(default_factory=StateMemory)


class NoCostOnHost(InconsistentRequest):
    """Units cannot be offloaded, because copies or the optimizer on the host have no known cost."""


class Sharding:
    """What all groupings of a mesh (or two) share: costs, and the optimizer."""

    def __init__(self, request: PlanRequest, whole: Partition, candidate: Candidate, known: KnownSizes) -> None:
        """Work out costs.

        Args:
            request: with the candidate's training.
            whole: the model as one unit.
            candidate: any on these meshes.
            known: sizes of the model at the training's precision.

        Raises:
            ShardwrightError: the request cannot be costed.
        """
        mesh, large_mesh = candidate.mesh, candidate.large_mesh
        demands = Demands(meshes=(large_mesh,) if large_mesh else (), owners=candidate.owners)
        self.request = request
        self.costs = CostModel.of(request, mesh, demands)
        self.known_sizes = known
        self._shards = local_shards(whole, (mesh,))
        """Where every unit is on the mesh and cut evenly."""
        self._states: dict[tuple[Moved, frozenset[Names]], OptimizerState] = {}
        """Of these shards, by what is off the device, unit by unit."""

    def state(self, candidate: Candidate, units: frozenset[int]) -> OptimizerState:
        """The optimizer under a candidate's meshes, with some units, or their state, off the device.

        Raises:
            NoCostOnHost: nothing says how long copies or the optimizer take there.
        """
        if units or candidate.activation_offload:
            try:
                self.costs.host_to_device_ns(1)
                self.costs.device_to_host_ns(1)
                return self._split(candidate, units)
            except ShardwrightError as error:
                raise NoCostOnHost(str(error)) from error
        return self._split(candidate, units)

    def _split(self, candidate: Candidate, units: frozenset[int]) -> OptimizerState:
        """Parameter by parameter."""
        parts = candidate.partition
        moved = candidate.offload.moved if units else Moved.UNITS
        names = [tuple(name for name, _ in parts.units[unit].parameters) for unit in sorted(units)]
        if candidate.large_mesh is not None or parts.layouts or parts.with_zeros:
            return self._without(moved, names, local_shards(parts, candidate.meshes))
        key = (moved, frozenset(names))
        if key not in self._states:
            self._states[key] = self._without(moved, names, self._shards)
        return self._states[key]

    def _without(self, moved: Moved, names: Sequence[Names], shards: LocalShards) -> OptimizerState:
        """With some units off the device, or their optimizer state alone."""
        if moved is Moved.UNITS:
            return self._state_of(shards, frozenset(chain.from_iterable(names)))
        place = {name: unit for unit, of_unit in enumerate(names) for name in of_unit}
        away: list[list[Shard]] = [[] for _ in names]
        rest: list[Shard] = []
        for shard in shards:
            unit = place.get(shard[0])
            (rest if unit is None else away[unit]).append(shard)
        steps = list(filter(None, away))
        require_adam(self.request.workload, steps)
        return replace(
            self._state_of(rest, frozenset()),
            away_ns=state_step_ns(steps, moved.tier, self.costs),
            away=StateMemory.of(steps, moved.tier, self.costs.optimizer_transient_bytes),
        )

    def _state_of(self, shards: LocalShards, names_on_host: frozenset[str]) -> OptimizerState:
        costs = self.costs
        on_device = [shard for shard in shards if shard[0] not in names_on_host]
        on_host = [shard for shard in shards if shard[0] in names_on_host]
        return OptimizerState(
            device_ns=costs.optimizer_ns(on_device),
            host_ns=costs.cpu_optimizer_ns(on_host),
            device_bytes=sum(costs.optimizer_state_bytes(*entry) for entry in on_device),
            transient_bytes=costs.optimizer_transient_bytes(on_device),
            host_bytes=sum(costs.optimizer_state_bytes(*entry) for entry in on_host),
            host_transient_bytes=costs.optimizer_transient_bytes(on_host),
        )
