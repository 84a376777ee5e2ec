"""CostModel: every duration and size that program, solver and explanation ask for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from planner.costs.compute import PassCost, model_flops, param_dtype_peak, pass_costs, pass_sources, recompute_pass
from planner.costs.copies import CopyCosts
from planner.costs.demands import Demands
from planner.costs.host import HostCosts
from planner.costs.memory import budget, budget_sources
from planner.costs.mesh import MeshCosts
from planner.costs.optimizer import (
    Shard,
    cpu_optimizer_ns,
    muon_rounds,
    muon_steps,
    optimizer_ns,
    optimizer_state_bytes,
    optimizer_transient_bytes,
    trainable_elements,
    usable_rates,
)
from planner.costs.rates import time_ns
from planner.costs.topology import Topology
from planner.schema import (
    Decisions,
    HostRuns,
    MemoryBudget,
    MeshPlan,
    NumberSource,
    Parameter,
    PlanRequest,
    SourcedNumber,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostModel:
    """Costs of one rank of a request on the meshes of a plan; integers, and the same on every call.

    Durations are nanoseconds, sizes are bytes. Collectives are stretched by the profile's
    `communication_slowdown_under_compute` and calls by `compute_slowdown_under_communication`, as if the other ran
    beside them all the time: an operation has one duration, wherever the schedule puts it.
    """

    launch_ns: int
    """CPU time to issue one kernel."""
    own: MeshCosts
    """Collectives of the plan's mesh."""
    all_reduce_shares_link: bool
    """A shard axis and a replicate axis cross nodes, so that all-reduces use the same network card as gathers and
    reduce-scatters.
    """
    host_runs: HostRuns
    """What the issuing thread carries out itself."""
    concurrent_collectives: bool
    """Collectives of two communicators over the shard axis do not slow each other down; only a profile says so."""
    budget: MemoryBudget
    """Device memory for training tensors."""
    peak_flops_per_s: int
    """Dense peak in the element type that parameters are computed in."""

    _request: PlanRequest
    _topology: Topology
    _passes: dict[tuple[str, str], PassCost]
    _copies: CopyCosts
    _host: HostCosts
    _optimizer_rate: int | None
    """Measured parameters per second of a step on the device."""
    _meshes: dict[MeshPlan, MeshCosts]
    _demands: Demands
    _known_reshards: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, request: PlanRequest, mesh: MeshPlan, demands: Demands = Demands()) -> Self:
        """Work out the costs.

        Args:
            request: model, cluster, workload and profile.
            mesh: the mesh of a plan.
            demands: what the plan asks for besides, which budget and sources depend on.

        Raises:
            UnknownName: a device or link that the catalog does not have.
            UnsupportedField: node groups that differ.
            InconsistentRequest: no link between nodes, too large a mesh, an element type without a rate, or a
                profile from which no time follows.
        """
        topology = Topology.of(request.cluster)
        profile = usable_rates(request.profile, request.workload)
        meshes = {
            one: MeshCosts.of(topology, one, profile, robust=request.robust) for one in (mesh, *demands.meshes)
        }
        measured_launch_ns = profile.launch_ns if profile else None
        return cls(
            launch_ns=topology.device.launch_ns if measured_launch_ns is None else measured_launch_ns,
            own=meshes[mesh],
            all_reduce_shares_link=any(one.shards_cross_nodes for one in meshes.values())
            and any(one.replicas_cross_nodes for one in meshes.values()),
            host_runs=topology.device.host_runs,
            concurrent_collectives=profile is not None and profile.concurrent_collectives,
            budget=budget(request, mesh, topology, demands),
            peak_flops_per_s=param_dtype_peak(request, topology.device),
            _request=request,
            _topology=topology,
            _passes=pass_costs(request, topology.device, overlapped=mesh.num_ranks > 1),
            _copies=CopyCosts.of(topology.device, profile),
            _host=HostCosts.of(request.cluster, topology.device, profile, robust=request.robust),
            _optimizer_rate=profile.optimizer_parameters_per_s if profile else None,
            _meshes=meshes,
            _demands=demands,
        )

    @classmethod
    def of_plan(cls, request: PlanRequest, decisions: Decisions) -> Self:
        """Costs of a plan, its demands included; errors as in `of`."""
        return cls.of(request, decisions.mesh, Demands.of(decisions))

    def forward_ns(self, kind: str) -> int:
        """Forward of a call of this kind."""
        return self._passes[kind, "forward"].duration_ns

    def backward_ns(self, kind: str) -> int:
        """Backward of a call, recomputation left out."""
        return self._passes[kind, "backward"].duration_ns

    def recompute_ns(self, kind: str, saved_ops: tuple[str, ...] = ()) -> int:
        """Recomputation of a checkpointed call of this kind, where the outputs of some operations are kept."""
        return self._passes[kind, recompute_pass(saved_ops)].duration_ns

    def forward_kernels(self, kind: str) -> int:
        """Kernels that the forward of a call launches."""
        return self._passes[kind, "forward"].num_kernels

    def backward_kernels(self, kind: str) -> int:
        """Kernels that the backward of a call launches."""
        return self._passes[kind, "backward"].num_kernels

    def recompute_kernels(self, kind: str, saved_ops: tuple[str, ...] = ()) -> int:
        """Kernels that the recomputation of a call launches."""
        return self._passes[kind, recompute_pass(saved_ops)].num_kernels

    def collectives(self, mesh: MeshPlan) -> MeshCosts:
        """Collectives of one of the plan's meshes."""
        return self.own if mesh is self.own.mesh else self._meshes[mesh]

    def copy_ns(self, read_bytes: int, write_bytes: int) -> int:
        """A kernel that reads and writes device memory; 0 only when it moves nothing."""
        return self._copies.copy_ns(read_bytes, write_bytes)

    def host_to_device_ns(self, size_bytes: int) -> int:
        """Copy from pinned host memory.

        Raises:
            InconsistentRequest: neither device nor profile has a bandwidth for it.
        """
        return self._host.copy_ns("host_to_device", size_bytes)

    def device_to_host_ns(self, size_bytes: int) -> int:
        """Copy to pinned host memory; errors as in `host_to_device_ns`."""
        return self._host.copy_ns("device_to_host", size_bytes)

    def nvme_read_ns(self, size_bytes: int) -> int:
        """Read from the drives of a host by each of its ranks.

        Raises:
            InconsistentRequest: neither cluster nor profile has a bandwidth for it.
        """
        return self._host.nvme_ns("nvme_read", size_bytes)

    def nvme_write_ns(self, size_bytes: int) -> int:
        """Write to the drives; errors as in `nvme_read_ns`."""
        return self._host.nvme_ns("nvme_write", size_bytes)

    @property
    def nvme_budget_bytes(self) -> int:
        """Room on the drives of a host for one rank; 0 when the cluster does not say."""
        return self._host.nvme_bytes

    def taken_bytes(self, demands: Demands) -> int:
        """What further demands take from the budget: communicators. Nothing where the request states the budget."""
        if self._request.limits.memory_bytes is not None:
            return 0
        further = replace(demands, meshes=self._demands.meshes)
        with_them = budget(self._request, self.own.mesh, self._topology, further)
        return with_them.communicators_bytes - self.budget.communicators_bytes

    @property
    def reserved_bytes(self) -> int:
        """What is taken from the device whatever is decided; nothing where the request states the budget."""
        if self._request.limits.memory_bytes is not None:
            return 0
        return self.budget.context_bytes + self.budget.communicators_bytes + self.budget.other_bytes

    def partial_reshard_bytes(self, ranks: int) -> int:
        """What a unit takes from the budget that is resharded to so many ranks: its communicator."""
        if ranks not in self._known_reshards:
            self._known_reshards[ranks] = self.taken_bytes(Demands(partial_reshards=(ranks,)))
        return self._known_reshards[ranks]

    @property
    def host_budget_bytes(self) -> int:
        """Host memory for one rank; 0 when the cluster does not say."""
        return self._host.memory_bytes

    def optimizer_state_bytes(self, name: str, parameter: Parameter, shard_elements: int) -> int:
        """Optimizer state of a shard of `shard_elements`; 0 when frozen.

        Raises:
            InconsistentRequest: no optimizer group matches a trainable parameter.
        """
        return optimizer_state_bytes(self._request.workload, name, parameter, shard_elements)

    def optimizer_ns(self, shards: Sequence[Shard]) -> int:
        """Optimizer step over `(full name, parameter, elements on this rank)`.

        Unless its rate was measured, what Muon communicates comes on top; an all-reduce counts as a reduce-scatter
        and an all-gather. An owner receives its matrix from the other ranks, and gives it back to them, as it would
        receive it in an all-gather.

        Raises:
            InconsistentRequest: no optimizer group matches a trainable parameter.
        """
        rate = self._optimizer_rate
        if rate is not None:
            return time_ns(trainable_elements(shards), rate)
        workload, owners = self._request.workload, self._demands.owner_ranks
        alone_ns = optimizer_ns(workload, shards, self._topology.device, launch_ns=self.launch_ns, owners=owners)
        exchanges_ns = sum(
            2 * self.own.all_gather_ns(round_.exchanged_bytes) for round_ in muon_rounds(workload, shards, owners)
        )
        return (
            alone_ns
            + exchanges_ns
            + sum(
                sum(map(self.own.all_gather_ns, (*step.gathered_bytes, *step.all_reduced_bytes)))
                + sum(map(self.own.reduce_scatter_ns, step.all_reduced_bytes))
                for step in muon_steps(workload, shards, self.own.mesh.shard, owners)
            )
        )

    def cpu_optimizer_ns(self, shards: Sequence[Shard]) -> int:
        """Optimizer step over shards on the host, with this rank's share of the cores.

        Raises:
            InconsistentRequest: no optimizer group matches a trainable parameter, or the cores are not known.
        """
        if not trainable_elements(shards):
            return 0
        if self._host.parameters_per_s_per_core is not None:
            return time_ns(trainable_elements(shards), self._host.parameters_per_s)
        return cpu_optimizer_ns(self._request.workload, shards, bytes_per_s=self._host.bytes_per_s)

    def optimizer_transient_bytes(self, shards: Sequence[Shard]) -> int:
        """Memory that the optimizer step needs beyond state and gradients.

        Raises:
            InconsistentRequest: no optimizer group matches a trainable parameter.
        """
        return optimizer_transient_bytes(
            self._request.workload, shards, self.own.mesh.shard, self._demands.owner_ranks
        )

    def model_flops(self) -> int:
        """FLOPs of forward and backward of one micro-batch on one rank, without recomputation."""
        return model_flops(self._request)

    def sources(self) -> tuple[SourcedNumber, ...]:
        """Every number that the costs rest on, measured or assumed."""
        kinds = tuple(dict.fromkeys(call.kind for call in self._request.model.calls))
        return (
            *pass_sources(self._passes, kinds, self._demands.saved_ops),
            *self._launch_source(),
            *self._copies.sources(),
            *self._mesh_sources(),
            *self._optimizer_source(),
            *(self._host.sources() if self._demands.offloads else ()),
            *(self._host.nvme_sources() if self._demands.uses_nvme else ()),
            *budget_sources(self._request, self.budget),
        )

    def _mesh_sources(self) -> Iterator[SourcedNumber]:
        for mesh, costs in self._meshes.items():
            yield from costs.sources("" if costs is self.own else f" of mesh {mesh.replicate} x {mesh.shard}")
        for num_ranks in sorted(set(self._demands.partial_reshards)):
            over = next(mesh for mesh in self._meshes if mesh.shard % num_ranks == 0)
            yield from self._meshes[over].partial_sources(num_ranks)

    def _launch_source(self) -> tuple[SourcedNumber, ...]:
        profile = self._request.profile
        measured = profile is not None and profile.launch_ns is not None
        source = NumberSource.MEASURED if measured else NumberSource.ASSUMED
        return (SourcedNumber(name="launch of a kernel", value=self.launch_ns, unit="ns", source=source),)

    def _optimizer_source(self) -> tuple[SourcedNumber, ...]:
        rate = self._optimizer_rate
        if rate is None:
            return ()
        return (
            SourcedNumber(
                name="parameters updated by the optimizer", value=rate, unit="per_s", source=NumberSource.MEASURED
            ),
        )
