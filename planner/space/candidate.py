"""Global choices: what is enumerated, while the decisions of single units and blocks are searched inside each."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import TypeVar, cast

from planner.costs import CostModel
from planner.program.units import Partition
from planner.schema import ClientFeature, GradientSync, InconsistentRequest, MeshPlan, PlanRequest
from planner.space.fixed import allowed, allowed_values, allows
from planner.space.groupings import Grouped, allowed_partitions
from planner.space.meshes import allowed_meshes

Value = TypeVar("Value")
FORWARD_DEPTHS = (0, 1, 2)
BACKWARD_DEPTHS = (0, 2)
"""Depths of explicit prefetch; 0 is what FSDP2 does by itself, which in backward is a depth of 1."""
REDUCE_BUFFERS = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Knobs of the runtime that hold for all units."""

    forward_prefetch: int = 0
    backward_prefetch: int = 0
    reduce_buffers: int = 1
    separate_group: bool = False

    def __str__(self) -> str:
        named = {
            "prefetch": f"{self.forward_prefetch} and {self.backward_prefetch} ahead"
            if self.forward_prefetch or self.backward_prefetch
            else "",
            "buffers": f"{self.reduce_buffers} reduce buffers" if self.reduce_buffers > 1 else "",
            "group": "reduce-scatters in a group of their own" if self.separate_group else "",
        }
        return ", ".join(text for text in named.values() if text)


class Offload(StrEnum):
    """Units whose shards, gradients and optimizer state are in host memory."""

    NONE = "none"
    HALF = "half"
    """Every second one, the root not among them."""
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One global choice."""

    mesh: MeshPlan
    partition: Partition
    label: str
    micro_batch: int
    gradient_sync: GradientSync = GradientSync.EVERY_MICRO_BATCH
    keeps_gathered: bool = False
    """Units stay gathered between the micro-batches of a step."""
    offload: Offload = Offload.NONE
    setting: Setting = Setting()

    @property
    def on_host(self) -> tuple[bool, ...]:
        """Per unit, whether it is offloaded."""
        units = range(len(self.partition.units))
        every = {Offload.NONE: 0, Offload.HALF: 2, Offload.ALL: 1}[self.offload]
        return tuple(bool(every) and unit % every == every - 1 for unit in units)

    def with_setting(self, setting: Setting) -> "Candidate":
        """The same with other knobs of the runtime."""
        return replace(self, setting=setting)


def num_micro_batches(request: PlanRequest, micro_batch: int | None = None) -> int:
    """Micro-batches per rank and step, of the workload's size or of another."""
    workload = request.workload
    return workload.global_batch // ((micro_batch or workload.micro_batch) * request.cluster.num_devices)


def possible_micro_batches(request: PlanRequest) -> tuple[int, ...]:
    """Sizes that may be chosen and divide the sequences of a rank, the workload's own first."""
    sequences, rest = divmod(request.workload.global_batch, request.cluster.num_devices)
    asked = dict.fromkeys((request.workload.micro_batch, *request.micro_batches))
    return tuple(size for size in asked if not rest and not sequences % size)


def candidates(request: PlanRequest, *, offloads: bool) -> Iterator[Candidate]:
    """Every mesh, grouping and accumulation, as the client's features and the fixed choices allow.

    Each stands for its `settings` too. Those that offload are apart (`offloads`): they are asked for only where
    nothing fits without, or memory is what is minimised.

    Raises:
        InconsistentRequest: a fixed choice leaves none.
    """
    meshes = list(allowed_meshes(request))
    groups = allowed_partitions(request)
    batches = [size for size in possible_micro_batches(request) if allowed(request, {"micro_batch": size})]
    accumulations = {size: list(_accumulations(request, size)) for size in batches}
    if not meshes or not groups or not any(accumulations.values()):
        raise InconsistentRequest(
            "fixed: no mesh and grouping is left; the choices for mesh.shard, mesh.replicate, units.embedding, "
            "units.head, blocks_per_unit, split_blocks, micro_batch, gradient_sync, reshard_after_backward or "
            "offload contradict each other, the cluster, the model, its optimizer or the client's features"
        )
    values = [offload for offload in _offloads(request) if allowed(request, {"offload": offload.value})]
    chosen = [offload for offload in values if (offload is not Offload.NONE) is offloads]
    for offload, size, mesh, group in product(chosen, batches, meshes, groups):
        for sync, keeps in accumulations[size]:
            if sync is GradientSync.ALL_REDUCE_ON_LAST and mesh.replicate == 1:
                continue
            yield Candidate(
                mesh=mesh,
                partition=group.partition,
                label=_label(mesh, group, sync, keeps, offload, size if len(batches) > 1 else None),
                micro_batch=size,
                gradient_sync=sync,
                keeps_gathered=keeps,
                offload=offload,
            )


def _offloads(request: PlanRequest) -> tuple[Offload, ...]:
    """Offloading needs a client that can and a cluster that says how much memory its hosts have."""
    known = all(group.host_memory_bytes for group in request.cluster.node_groups)
    return tuple(Offload) if known and allows(request, ClientFeature.OFFLOAD) else (Offload.NONE,)


def _label(
    mesh: MeshPlan, group: Grouped, sync: GradientSync, keeps: bool, offload: Offload, micro_batch: int | None
) -> str:
    parts = [
        "" if micro_batch is None else f"micro-batch {micro_batch}",
        f"mesh {mesh.replicate} x {mesh.shard}" if mesh.replicate > 1 else f"mesh {mesh.shard}",
        group.label,
        _SYNCS[sync],
        "kept between micro-batches" if keeps else "",
        "" if offload is Offload.NONE else f"{offload.value} of the units in host memory",
    ]
    return ", ".join(part for part in parts if part)


_SYNCS = {
    GradientSync.EVERY_MICRO_BATCH: "",
    GradientSync.LAST_MICRO_BATCH: "gradients reduced on the last micro-batch",
    GradientSync.ALL_REDUCE_ON_LAST: "all-reduced on the last micro-batch",
}


def _accumulations(request: PlanRequest, micro_batch: int) -> Iterator[tuple[GradientSync, bool]]:
    several = num_micro_batches(request, micro_batch) > 1 and allows(request, ClientFeature.ACCUMULATION)
    for sync in GradientSync if several else (GradientSync.EVERY_MICRO_BATCH,):
        for keeps in (False, True) if several else (False,):
            if allowed(request, {"gradient_sync": sync.value, "reshard_after_backward": not keeps}):
                yield sync, keeps


def settings(request: PlanRequest, candidate: Candidate, costs: CostModel) -> list[Setting]:
    """Every setting that can matter under a global choice, FSDP2's default first where it is allowed.

    Raises:
        NoValueLeft: the fixed choices leave some knob nothing.
    """
    shards = candidate.mesh.shard > 1
    deepest = len(candidate.partition.passes) - 1
    prefetches = deepest if shards and allows(request, ClientFeature.PREFETCH) else 0
    buffers = shards and allows(request, ClientFeature.REDUCE_SCATTER_BUFFERS)
    separate = costs.concurrent_collectives and allows(request, ClientFeature.SEPARATE_REDUCE_SCATTER_GROUP)

    def left(knob: str, values: Iterable[Value]) -> tuple[Value, ...]:
        return cast(tuple[Value, ...], allowed_values(request, knob, tuple(values)))

    return [
        Setting(forward_prefetch=ahead, backward_prefetch=back, reduce_buffers=num, separate_group=group)
        for back in left("backward_prefetch", (d for d in BACKWARD_DEPTHS if d <= prefetches))
        for ahead in left("forward_prefetch", (d for d in FORWARD_DEPTHS if d <= prefetches))
        for num in left("reduce_scatter_max_input_buffers", REDUCE_BUFFERS if buffers else (1,))
        for group in left("separate_reduce_scatter_group", (False, True) if separate and shards else (False,))
    ]
