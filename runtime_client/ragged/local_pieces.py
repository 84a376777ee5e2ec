"""What of a parameter this rank holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from runtime_client.ragged.tensor import RaggedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPiece:
    """A run of elements of a parameter, counted in its flattened original."""

    offset: int
    num_elements: int


def local_pieces(parameter: Tensor) -> tuple[LocalPiece, ...]:
    """The runs of elements that this rank holds, in order; none where it holds nothing.

    Args:
        parameter: A parameter of a sharded model, ragged or even, or one that is not sharded at all.

    Raises:
        NotImplementedError: it is sharded over more than one dimension of the mesh.
    """
    if isinstance(parameter, RaggedTensor):
        return _run(parameter.spread.start, parameter.spread.num_local)
    sharded = _sharded_dim(parameter)
    if sharded is None:
        return _run(0, parameter.numel())
    assert isinstance(parameter, DTensor)
    placement, mesh = parameter.placements[sharded], parameter.device_mesh
    assert isinstance(placement, Shard)
    return _even(tuple(parameter.shape), placement.dim, mesh.size(sharded), mesh.get_local_rank(sharded))


def boundaries(parameter: Tensor) -> list[int]:
    """Elements of the flattened parameter at which one rank ends and the next begins, for each pair of ranks.

    Raises:
        NotImplementedError: it is sharded on another dimension than the first.
    """
    if isinstance(parameter, RaggedTensor):
        return list(accumulate(parameter.spread.sizes))[:-1]
    sharded = _sharded_dim(parameter)
    if sharded is None:
        return []
    assert isinstance(parameter, DTensor)
    placement, num_ranks = parameter.placements[sharded], parameter.device_mesh.size(sharded)
    assert isinstance(placement, Shard)
    if placement.dim:
        raise NotImplementedError(f"{tuple(parameter.placements)}: the parts of ranks are no runs of elements")
    rows = -(-parameter.shape[0] // num_ranks)
    inner = prod(parameter.shape[1:])
    return [min(rank * rows, parameter.shape[0]) * inner for rank in range(1, num_ranks)]


def shard_group(parameter: Tensor) -> tuple[dist.ProcessGroup, int]:
    """The ranks that a parameter is sharded over, and this rank's place among them.

    Raises:
        NotImplementedError: it is sharded over more than one dimension of the mesh, or over none.
    """
    sharded = _sharded_dim(parameter)
    if sharded is None:
        raise NotImplementedError(f"a parameter of shape {tuple(parameter.shape)} that is not sharded")
    mesh = cast(DTensor, parameter).device_mesh
    return mesh.get_group(sharded), mesh.get_local_rank(sharded)


def is_whole_somewhere(parameter: Tensor) -> bool:
    """Whether one rank holds all of a parameter."""
    return all(bound in (0, parameter.numel()) for bound in boundaries(parameter))


def _sharded_dim(parameter: Tensor) -> int | None:
    """Dimension of the mesh that a parameter is sharded over."""
    if not isinstance(parameter, DTensor):
        return None
    sharded = [dim for dim, placement in enumerate(parameter.placements) if isinstance(placement, Shard)]
    if len(sharded) > 1:
        raise NotImplementedError(
            f"{tuple(parameter.placements)}: a parameter sharded over one mesh dimension only"
        )
    return sharded[0] if sharded else None


def _even(shape: Sequence[int], dim: int, num_ranks: int, rank: int) -> tuple[LocalPiece, ...]:
    chunk = -(-shape[dim] // num_ranks)
    start, end = min(rank * chunk, shape[dim]), min((rank + 1) * chunk, shape[dim])
    inner = prod(shape[dim + 1 :])
    runs = prod(shape[:dim])
    pieces = (_run((outer * shape[dim] + start) * inner, (end - start) * inner) for outer in range(runs))
    return tuple(piece for found in pieces for piece in found)


def _run(offset: int, num_elements: int) -> tuple[LocalPiece, ...]:
    return (LocalPiece(offset=offset, num_elements=num_elements),) if num_elements else ()
