"""Meshes of shard and replicate degree."""

from collections.abc import Iterator

from planner.costs.optimizer import largest_shard_degree
from planner.schema import ClientFeature, MeshPlan, PlanRequest
from planner.space.fixed import allowed, allows


def allowed_meshes(request: PlanRequest) -> Iterator[MeshPlan]:
    """All factorisations of the world size, the fully sharded one first."""
    world = request.cluster.num_devices
    hybrid = allows(request, ClientFeature.HYBRID_MESH)
    largest = largest_shard_degree(request.workload, request.model.iter_parameters()) or world
    for shard in sorted((n for n in range(1, world + 1) if world % n == 0), reverse=True):
        if shard > largest:
            continue
        mesh = MeshPlan(replicate=world // shard, shard=shard)
        wanted = {"mesh.shard": mesh.shard, "mesh.replicate": mesh.replicate}
        if (hybrid or mesh.replicate == 1) and allowed(request, wanted):
            yield mesh
