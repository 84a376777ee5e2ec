"""Matrices that are cut between ranks, each updated as a whole by the rank that owns it.

In each round every rank gathers the next matrix that it owns, in bfloat16, updates it, and gives each rank the part
that it holds: two `all_to_all_single`. Momentum, weight decay and the addition of the update are element by element
and happen where the elements are, so the result is that of an unsharded run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import torch
import torch.distributed as dist
from torch import Tensor

from runtime_client.ragged.local_pieces import boundaries, shard_group
from runtime_client.ragged.private import local_of

Update = Callable[[Tensor], Tensor]
"""From the whole matrix in bfloat16, which it may write to, to its update in bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedMatrix:
    """A matrix, what every rank holds of it, and who updates it."""

    parameter: Tensor
    owner: int
    """Rank of the shard group."""
    sizes: tuple[int, ...]
    """Elements of each rank; in the order of the ranks they are the flattened matrix."""

    @classmethod
    def of(cls, parameter: Tensor, owner: int) -> "OwnedMatrix":
        """A sharded parameter.

        Raises:
            NotImplementedError: it is sharded on another dimension than the first.
        """
        bounds = [0, *boundaries(parameter), parameter.numel()]
        return cls(parameter=parameter, owner=owner, sizes=tuple(end - start for start, end in pairwise(bounds)))


def rounds(matrices: Sequence[OwnedMatrix]) -> list[list[OwnedMatrix]]:
    """One matrix of each owner at a time, by owner within a round; an owner takes its own as they are listed."""
    by_owner: dict[int, list[OwnedMatrix]] = {}
    for matrix in sorted(matrices, key=lambda matrix: matrix.owner):
        by_owner.setdefault(matrix.owner, []).append(matrix)
    return [[matrix for matrix in one if matrix is not None] for one in zip_longest(*by_owner.values())]


def update_round(members: Sequence[OwnedMatrix], piece: Callable[[int], Tensor], update: Update) -> list[Tensor]:
    """Update the matrices of a round, at most one of each owner; every rank of the shard group must call it.

    Args:
        members: by owner.
        piece: this rank's elements of the direction of a member, given by its place; any shape, cast to bfloat16.
        update: what an owner does with its matrix.

    Returns:
        This rank's elements of the update of each member, flat, in bfloat16.
    """
    group, rank = shard_group(members[0].parameter)
    device = local_of(members[0].parameter).device
    held = [member.sizes[rank] for member in members]
    own = next((member for member in members if member.owner == rank), None)
    to_owners, from_ranks = [0] * group.size(), list(own.sizes) if own else [0] * group.size()
    for member, size in zip(members, held, strict=True):
        to_owners[member.owner] = size
    pieces = torch.empty(sum(held), dtype=torch.bfloat16, device=device)
    for place, part in enumerate(torch.split(pieces, held)):
        part.copy_(piece(place).reshape(-1))
    whole = pieces.new_empty(sum(from_ranks))
    dist.all_to_all_single(whole, pieces, from_ranks, to_owners, group=group)
    if own:
        whole = update(whole.view(own.parameter.shape)).contiguous().view(-1)
    dist.all_to_all_single(pieces, whole, to_owners, from_ranks, group=group)
    return list(torch.split(pieces, held))
