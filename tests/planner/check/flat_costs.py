"""Costs that do not depend on sizes, so that clocks can be worked out by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.schema.cluster import HostRuns
from planner.schema.decisions import MeshPlan
from planner.schema.model import Parameter
from planner.schema.plan import MemoryBudget
from tests.planner.factories import DURATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatCosts:
    """Every collective and copy takes its constant; Adam in float32 (8 bytes per element), foreach."""

    launch_ns: int = 0
    host_runs: HostRuns = HostRuns.NOTHING
    all_reduce_shares_link: bool = False
    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(device_bytes=2**50, budget_bytes=2**50))
    gather: int = 40
    reduce: int = 30
    all_reduce: int = 20
    copy: int = 1
    partial_gather: int = 15
    to_device: int = 50
    to_host: int = 60
    concurrent_collectives: bool = False
    host_budget_bytes: int = 0
    nvme_budget_bytes: int = 0
    nvme_read: int = 70
    nvme_write: int = 80
    durations: Mapping[str, tuple[int, int, int]] = field(default_factory=lambda: DURATIONS)
    kernels: int = 1

    def forward_ns(self, kind: str, /) -> int:
        return self.durations[kind][0]

    def backward_ns(self, kind: str, /) -> int:
        return self.durations[kind][1]

    def recompute_ns(self, kind: str, /, saved_ops: tuple[str, ...] = ()) -> int:
        return self.durations[kind][2] // (1 + len(saved_ops))

    def forward_kernels(self, kind: str, /) -> int:
        return self.kernels

    def backward_kernels(self, kind: str, /) -> int:
        return self.kernels

    def recompute_kernels(self, kind: str, /, saved_ops: tuple[str, ...] = ()) -> int:
        return self.kernels

    def collectives(self, mesh: MeshPlan, /) -> "FlatCosts":
        return self

    def all_gather_ns(self, size_bytes: int, /, ranks: int | None = None) -> int:
        return self.gather if ranks is None else self.partial_gather

    def reduce_scatter_ns(self, size_bytes: int, /) -> int:
        return self.reduce

    def all_reduce_ns(self, size_bytes: int, /) -> int:
        return self.all_reduce

    def copy_ns(self, read_bytes: int, write_bytes: int, /) -> int:
        return self.copy

    def host_to_device_ns(self, size_bytes: int, /) -> int:
        return self.to_device

    def device_to_host_ns(self, size_bytes: int, /) -> int:
        return self.to_host

    def nvme_read_ns(self, size_bytes: int, /) -> int:
        return self.nvme_read

    def nvme_write_ns(self, size_bytes: int, /) -> int:
        return self.nvme_write

    def optimizer_state_bytes(self, name: str, parameter: Parameter, shard_elements: int, /) -> int:
        return 8 * shard_elements if parameter.requires_grad else 0

    def optimizer_ns(self, shards: Sequence[tuple[str, Parameter, int]], /) -> int:
        return 7

    def cpu_optimizer_ns(self, shards: Sequence[tuple[str, Parameter, int]], /) -> int:
        return 11

    def optimizer_transient_bytes(self, shards: Sequence[tuple[str, Parameter, int]], /) -> int:
        return sum(elements * parameter.dtype.itemsize_bytes for _, parameter, elements in shards)
