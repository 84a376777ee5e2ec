"""Meshes of shard and replicate degree, for all units and for large ones."""

from collections.abc import Iterator
from itertools import pairwise

from planner.costs.optimizer import largest_shard_degree
from planner.program.units import ROOT, Partition
from planner.schema import ClientFeature, MeshPlan, PlanRequest
from planner.space.fixed import allowed, allows
from planner.space.owners import may_have_owners


def allowed_meshes(request: PlanRequest) -> Iterator[MeshPlan]:
    """All factorisations of the world size that may be chosen, the fully sharded one first."""
    for mesh in _factorisations(request):
        if allowed(request, {"mesh.shard": mesh.shard, "mesh.replicate": mesh.replicate}):
            yield mesh


def _factorisations(request: PlanRequest) -> Iterator[MeshPlan]:
    world = request.cluster.num_devices
    hybrid = allows(request, ClientFeature.HYBRID_MESH)
    largest = largest_shard_degree(request.workload, request.model.iter_parameters()) or world
    if may_have_owners(request):
        largest = world
    for shard in sorted((n for n in range(1, world + 1) if world % n == 0), reverse=True):
        if shard > largest:
            continue
        if hybrid or shard == world:
            yield MeshPlan(replicate=world // shard, shard=shard)


LEAST_RATIO = 4
"""Large units have so many times the parameters of any other, the root left out."""


def large_units(parts: Partition) -> frozenset[int]:
    """Units above the widest gap in size: experts beside attention, or an embedding beside small blocks.

    Empty where no gap is as wide as `LEAST_RATIO`. The root is never among them.
    """
    sizes = {
        unit: sum(parameter.num_elements for _, parameter in entry.parameters)
        for unit, entry in enumerate(parts.units)
        if unit != ROOT and entry.parameters
    }
    gaps = [(high / low, high) for low, high in pairwise(sorted(set(sizes.values())))]
    ratio, least = max(gaps, default=(0, 0))
    return frozenset(unit for unit, size in sizes.items() if ratio >= LEAST_RATIO and size >= least)


def mesh_beside(request: PlanRequest, mesh: MeshPlan) -> MeshPlan | None:
    """The mesh that large units may have where all else is on `mesh`: one is over all ranks, the other over nodes.

    None on a single node, whose links are all alike, and with Muon, whose step is modelled over one mesh.
    """
    if not allows(request, ClientFeature.UNIT_MESH):
        return None
    if largest_shard_degree(request.workload, request.model.iter_parameters()) is not None:
        return None
    (whole,) = [one for one in _factorisations(request) if one.replicate == 1]
    in_node = [
        one for one in _factorisations(request) if one.shard == request.cluster.node_groups[0].devices_per_node
    ]
    pair = {whole, *in_node}
    return next(iter(pair - {mesh}), None) if mesh in pair else None
