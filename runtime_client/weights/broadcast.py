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
        state: On rank 0 tensors by name; elsewhere nothing.
        rename: Gives the name in `state` of each name in the model.
        ignore: Globs of names that `state` may have and the model has not.
        build: As `materialise` takes it.

    Raises:
        CheckpointMismatch: names, shapes or element types do not fit; on every rank.
        BuffersLost: see `materialise`.
    """
    offered = _announced(applied, state, rename, tuple(ignore))
    materialise(applied, build=build)
    device = torch.device(applied.mesh.device_type)
    loaded = Loaded()
    for name, tensor in match(applied.model, offered, rename=rename, ignore=ignore).items():
        shape, dtype = offered[name]
        whole = state[name].detach().to(device).contiguous() if state is not None else None
        whole = torch.empty(shape, dtype=dtype, device=device) if whole is None else whole
        dist.broadcast(whole, src=0)
        write(tensor, whole)
        loaded.note(dtype, tensor.dtype)
        loaded.read_bytes += whole.nbytes if state is not None else 0
    return loaded


def _announced(
    applied: AppliedPlan, state: Mapping[str, Tensor] | None, rename: Rename, ignore: tuple[str, ...]
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and element types of what rank 0 has, once it fits the model."""
    message: list[Any] = [None, None]
    if dist.get_rank() == 0:
        assert state is not None, "rank 0 loads"
        offered = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
        try:
            for name, tensor in match(applied.model, offered, rename=rename, ignore=ignore).items():
                check_like(name, tensor, *offered[name])
            message = [offered, None]
        except CheckpointMismatch as error:
            message = [None, str(error)]
    dist.broadcast_object_list(message, src=0)
    found, problem = message
    if problem is not None:
        raise CheckpointMismatch(problem)
    assert isinstance(found, dict)
    return found
