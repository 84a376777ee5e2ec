"""Load on rank 0 alone, and hand each tensor on to the others, one after another."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runtime_client.apply.applied import AppliedPlan
from runtime_client.weights.errors import CheckpointMismatch
from runtime_client.weights.matching import Loaded, Rename, check_like, match, write
from runtime_client.weights.materialise import Build, materialise


def load_from_rank_0(
    applied: AppliedPlan,
    state: Mapping[str, Tensor] | None,
    *,
    rename: Rename = str,
    ignore: Iterable[str] = (),
    build: Build | None = None,
) -> Loaded:
    """Load whole tensors that only rank 0 has; every rank calls it.

    For files that other ranks do not see, or that cannot be read in parts. Rank 0 needs the whole model in host
    memory, each device one whole tensor at a time; `load_safetensors` needs neither.

    Args:
        applied: The sharded model; what is on the meta device is allocated first.
        state: On rank 0 tensors by name; what other ranks give is not looked at.
        rename: Gives the name in `state` of each name in the model.
        ignore: Globs of names that `state` may have and the model has not.
        build: As `materialise` takes it.

    Raises:
        CheckpointMismatch: names, shapes or element types do not fit; on every rank.
        BuffersLost: see `materialise`.
    """
    is_first = dist.get_rank() == 0
    ignore = tuple(ignore)
    offered = _announced(applied, state, rename, ignore)
    materialise(applied, build=build)
    device = torch.device(applied.mesh.device_type)
    loaded = Loaded()
    for name, tensor in match(applied.model, offered, rename=rename, ignore=ignore):
        shape, dtype = offered[name]
        if is_first and state is not None:
            whole = state[name].detach().to(device).contiguous()
        else:
            whole = torch.empty(shape, dtype=dtype, device=device)
        dist.broadcast(whole, src=0)
        write(tensor, whole)
        loaded.note(dtype, tensor.dtype)
        loaded.read_bytes += whole.nbytes if is_first else 0
    return loaded


def _announced(
    applied: AppliedPlan, state: Mapping[str, Tensor] | None, rename: Rename, ignore: tuple[str, ...]
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and element types of what rank 0 has, once it fits the model."""
    message: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            message = [_offered(applied, state, rename, ignore), None]
        except Exception as error:
            message = [None, str(error) if isinstance(error, CheckpointMismatch) else f"rank 0: {error!r}"]
    dist.broadcast_object_list(message, src=0)
    found, problem = message
    if problem is not None:
        raise CheckpointMismatch(problem)
    assert isinstance(found, dict)
    return found


def _offered(
    applied: AppliedPlan, state: Mapping[str, Tensor] | None, rename: Rename, ignore: tuple[str, ...]
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    if state is None:
        raise CheckpointMismatch("rank 0 has no state to hand on: give load_from_rank_0 the tensors there")
    offered = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
    for name, tensor in match(applied.model, offered, rename=rename, ignore=ignore):
        check_like(name, tensor, *offered[name])
    return offered
