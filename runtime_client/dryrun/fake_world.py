"""A world of any size in one process: a process group that moves nothing and tensors that hold nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.schema import InconsistentRequest, MeshPlan
from runtime_client.apply.meshes import build_mesh
from runtime_client.dryrun import recording_device


@contextmanager
def fake_world(mesh: MeshPlan, device_type: str) -> Iterator[DeviceMesh]:
    """Be rank 0 of `mesh.num_ranks` ranks, with fake tensors, inside the context.

    Yields the device mesh, with dimensions `("replicate", "shard")` or `("shard",)`.

    Raises:
        InconsistentRequest: this process already has a process group; dry runs need a process of their own.
    """
    if dist.is_initialized():
        raise InconsistentRequest(
            "this process already has a process group: run the dry run in a process of its own "
            "(`python -m runtime_client.dryrun`)"
        )
    recording_device.register()
    dist.init_process_group(recording_device.PROCESS_GROUP, rank=0, world_size=mesh.num_ranks, store=FakeStore())
    try:
        device_mesh = build_mesh(mesh, device_type)
        with FakeTensorMode(allow_non_fake_inputs=False), _real_mesh_inside_fully_shard():
            yield device_mesh
    finally:
        dist.destroy_process_group()


@contextmanager
def _real_mesh_inside_fully_shard() -> Iterator[None]:
    """An integer `reshard_after_forward` makes `fully_shard` build a mesh, whose tensors must be real."""
    original = _fsdp_init._get_post_forward_mesh_info

    def outside_fake_mode(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passes through
        with unset_fake_temporarily():
            return original(*args, **kwargs)

    modules = (_fsdp_init, _fully_shard)
    for module in modules:
        module._get_post_forward_mesh_info = outside_fake_mode  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module._get_post_forward_mesh_info = original  # type: ignore[attr-defined]
