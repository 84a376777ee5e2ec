"""Device memory that is left for training tensors."""

import math

from planner.costs.demands import Demands
from planner.costs.rates import exact_fraction
from planner.costs.topology import Topology
from planner.schema import MemoryBudget, MeshPlan, NumberSource, PlanRequest, SourcedNumber


def budget(request: PlanRequest, mesh: MeshPlan, topology: Topology, demands: Demands = Demands()) -> MemoryBudget:
    """Device memory less context, communicators, fragmentation and other reserves; never below 0.

    `limits.memory_bytes` replaces the result, and only the result: the parts stay as they are.
    """
    reserve = request.cluster.reserve
    device_bytes = topology.device_memory_bytes
    groups = communicator_sizes(mesh, demands)
    parts = {
        "context_bytes": context_bytes(request, topology),
        "communicators_bytes": sum(communicator_bytes(request, size) for size in groups),
        "fragmentation_bytes": math.ceil(device_bytes * exact_fraction(reserve.fragmentation)),
        "other_bytes": reserve.other_bytes,
    }
    limit = request.limits.memory_bytes
    return MemoryBudget(
        device_bytes=device_bytes,
        num_communicators=len(groups),
        budget_bytes=max(0, device_bytes - sum(parts.values())) if limit is None else limit,
        **parts,
    )


def communicator_sizes(mesh: MeshPlan, demands: Demands = Demands()) -> tuple[int, ...]:
    """Ranks of each communicator that FSDP2 makes on one rank, the default group of the world first.

    A 1-D mesh over the world reuses the default group; each axis of a 2-D mesh with more than one rank is a new
    one, of every mesh that some unit has. Every unit with an integer `reshard_after_forward` makes its own group of
    that many ranks: torch 2.13 builds a `DeviceMesh` for each of them (`_get_post_forward_mesh_info`), even where
    their ranks are the same. The mesh's other axis gets a process group too, which never communicates.
    `set_separate_reduce_scatter_group` makes one more group over the shard axis of each mesh.
    """
    meshes = (mesh, *demands.meshes)
    axes = [size for one in meshes if one.replicate > 1 for size in (one.shard, one.replicate)]
    separate = [one.shard for one in meshes] if demands.separate_reduce_scatter_group else []
    further = (*axes, *demands.partial_reshards, *separate)
    return (mesh.num_ranks, *(size for size in further if size > 1))


def communicator_bytes(request: PlanRequest, num_ranks: int) -> int:
    """Device memory of one communicator: measured, else the cluster's reserve; nothing for a single rank."""
    if num_ranks == 1:
        return 0
    if request.profile is not None and request.profile.communicator_bytes is not None:
        return request.profile.communicator_bytes
    reserve = request.cluster.reserve
    return reserve.pair_communicator_bytes if num_ranks == 2 else reserve.communicator_bytes


def context_bytes(request: PlanRequest, topology: Topology) -> int:
    """Device memory of the driver context: measured, else the cluster's reserve, else the data sheet."""
    if request.profile is not None and request.profile.context_bytes is not None:
        return request.profile.context_bytes
    reserved = request.cluster.reserve.context_bytes
    return topology.device.context_bytes if reserved is None else reserved


def budget_sources(request: PlanRequest, result: MemoryBudget) -> tuple[SourcedNumber, ...]:
    """Reserves that are not zero, measured or assumed."""
    profile = request.profile
    measured = {
        "context": profile is not None and profile.context_bytes is not None,
        "communicators": profile is not None and profile.communicator_bytes is not None,
    }
    values = {
        "context": result.context_bytes,
        "communicators": result.communicators_bytes,
        "fragmentation": result.fragmentation_bytes,
        "other reserve": result.other_bytes,
    }
    return tuple(
        SourcedNumber(
            name=name,
            value=value,
            unit="bytes",
            source=NumberSource.MEASURED if measured.get(name) else NumberSource.ASSUMED,
        )
        for name, value in values.items()
        if value
    )
