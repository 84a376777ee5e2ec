"""Device meshes of a plan."""

from collections.abc import Mapping

from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from planner.schema import Decisions, MeshPlan


def build_mesh(plan: MeshPlan, device_type: str) -> DeviceMesh:
    """A mesh over all ranks, `(shard,)` or `(replicate, shard)`; every rank must build the same ones in one order.

    Its own tensors are real ones under fake tensors too.
    """
    sizes = (plan.shard,) if plan.replicate == 1 else (plan.replicate, plan.shard)
    with unset_fake_temporarily():
        return init_device_mesh(device_type, sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])


def build_meshes(decisions: Decisions, mesh: DeviceMesh) -> Mapping[MeshPlan, DeviceMesh]:
    """`mesh` as that of the plan, and one more for each other that some unit has, in the order of the units."""
    _, *others = decisions.meshes
    return {decisions.mesh: mesh} | {plan: build_mesh(plan, mesh.device_type) for plan in others}
