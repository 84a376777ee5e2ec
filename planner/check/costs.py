"""The durations and sizes that the checker asks a cost model for."""

from collections.abc import Sequence
from typing import Protocol

from planner.schema.cluster import HostRuns
from planner.schema.decisions import MeshPlan
from planner.schema.model import Parameter
from planner.schema.plan import MemoryBudget

Shards = Sequence[tuple[str, Parameter, int]]
"""(full name, parameter, elements on this rank) of parameters in the order of their registration."""


class CollectiveCosts(Protocol):
    """Durations of collectives over the groups of one mesh, in nanoseconds."""

    def all_gather_ns(self, size_bytes: int, /, ranks: int | None = None) -> int:
        """All-gather into a full buffer of this size, over the shard axis or over `ranks` neighbours of it."""

    def reduce_scatter_ns(self, size_bytes: int, /) -> int:
        """Reduce-scatter of a full buffer of this size over the shard axis."""

    def all_reduce_ns(self, size_bytes: int, /) -> int:
        """All-reduce of a buffer of this size over the replicate axis."""


class CommunicationCosts(Protocol):
    """Durations of what FSDP2 issues, in nanoseconds."""

    def collectives(self, mesh: MeshPlan, /) -> CollectiveCosts:
        """Collectives of units on a mesh."""

    def copy_ns(self, read_bytes: int, write_bytes: int, /) -> int:
        """Copy on the device."""

    def host_to_device_ns(self, size_bytes: int, /) -> int:
        """Copy from pinned host memory."""

    def device_to_host_ns(self, size_bytes: int, /) -> int:
        """Copy to pinned host memory."""


class StepCosts(CommunicationCosts, Protocol):
    """Durations and sizes that a step is made of; `CostModel` is one."""

    @property
    def launch_ns(self) -> int:
        """CPU time to issue one kernel."""

    @property
    def host_runs(self) -> HostRuns:
        """What the issuing thread carries out itself."""

    @property
    def all_reduce_shares_link(self) -> bool:
        """Whether all-reduces follow the other collectives on one link."""

    @property
    def concurrent_collectives(self) -> bool:
        """Whether collectives of two communicators over a shard axis run side by side."""

    @property
    def budget(self) -> MemoryBudget:
        """Device memory for training tensors."""

    @property
    def host_budget_bytes(self) -> int:
        """Host memory for one rank; 0 when the cluster does not say."""

    @property
    def nvme_budget_bytes(self) -> int:
        """Room on the drives for one rank; 0 when the cluster does not say."""

    def forward_ns(self, kind: str, /) -> int:
        """Forward of a call."""

    def backward_ns(self, kind: str, /) -> int:
        """Backward of a call without recomputation."""

    def recompute_ns(self, kind: str, /, saved_ops: tuple[str, ...] = ()) -> int:
        """Recomputation of a checkpointed call that keeps the outputs of `saved_ops`."""

    def forward_kernels(self, kind: str, /) -> int:
        """Kernels of the forward of a call."""

    def backward_kernels(self, kind: str, /) -> int:
        """Kernels of the backward of a call."""

    def recompute_kernels(self, kind: str, /, saved_ops: tuple[str, ...] = ()) -> int:
        """Kernels of the recomputation of a checkpointed call."""

    def optimizer_state_bytes(self, name: str, parameter: Parameter, shard_elements: int, /) -> int:
        """Optimizer state of a shard."""

    def optimizer_ns(self, shards: Shards, /) -> int:
        """Optimizer step over shards on the device."""

    def cpu_optimizer_ns(self, shards: Shards, /) -> int:
        """Optimizer step over shards in host memory."""

    def nvme_read_ns(self, size_bytes: int, /) -> int:
        """Read by one rank, while all of its host do."""

    def nvme_write_ns(self, size_bytes: int, /) -> int:
        """Write by one rank, while all of its host do."""

    def optimizer_transient_bytes(self, shards: Shards, /) -> int:
        """Device memory of the optimizer step beyond state and gradients."""
