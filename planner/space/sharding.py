"""What all groupings of a mesh (or two) share: the costs, and the optimizer over its shards."""

from dataclasses import dataclass

from planner.costs import CostModel
from planner.costs.demands import Demands
from planner.program.inputs import KnownSizes, LocalShards, local_shards
from planner.program.units import partition
from planner.schema import InconsistentRequest, PlanRequest, ShardwrightError
from planner.space.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """What the optimizer takes on one rank."""

    optimizer_ns: int
    """Its step, on the device and then on the host."""
    device_bytes: int
    transient_bytes: int
    host_bytes: int = 0
    host_transient_bytes: int = 0


class NoCostOnHost(InconsistentRequest):
    """Units cannot be offloaded, because copies or the optimizer on the host have no known cost."""


class Sharding:
    """What all groupings of a mesh (or two) share: costs, and the optimizer."""

    def __init__(self, request: PlanRequest, candidate: Candidate) -> None:
        """Work out costs.

        Raises:
            ShardwrightError: the request cannot be costed.
        """
        mesh, large_mesh = candidate.mesh, candidate.large_mesh
        demands = Demands(meshes=(large_mesh,) if large_mesh else (), owners=candidate.owners)
        self.request = request
        self.costs = CostModel.of(request, mesh, demands)
        self.known_sizes: KnownSizes = {}
        shards = local_shards(partition(request.model, ()), (mesh,))
        self._on_device = self._state_of(shards, ())

    def state(self, candidate: Candidate) -> OptimizerState:
        """The optimizer under a candidate's meshes, and where some of its units or activations are on the host.

        Raises:
            NoCostOnHost: nothing says how long copies or the optimizer take there.
        """
        offloads = any(candidate.on_host)
        is_uneven = candidate.large_mesh is not None or bool(candidate.partition.layouts)
        if not (offloads or candidate.activation_offload):
            return self._split(candidate) if is_uneven else self._on_device
        try:
            self.costs.host_to_device_ns(1)
            self.costs.device_to_host_ns(1)
            return self._split(candidate) if offloads or is_uneven else self._on_device
        except ShardwrightError as error:
            raise NoCostOnHost(str(error)) from error

    def _split(self, candidate: Candidate) -> OptimizerState:
        """Unit by unit."""
        sides = [[unit for unit, side in enumerate(candidate.on_host) if side is host] for host in (False, True)]
        return self._state_of(*(local_shards(candidate.partition, candidate.meshes, units) for units in sides))

    def _state_of(self, on_device: LocalShards, on_host: LocalShards) -> OptimizerState:
        costs = self.costs
        return OptimizerState(
            optimizer_ns=costs.optimizer_ns(on_device) + costs.cpu_optimizer_ns(on_host),
            device_bytes=sum(costs.optimizer_state_bytes(*entry) for entry in on_device),
            transient_bytes=costs.optimizer_transient_bytes(on_device),
            host_bytes=sum(costs.optimizer_state_bytes(*entry) for entry in on_host),
            host_transient_bytes=costs.optimizer_transient_bytes(on_host),
        )
