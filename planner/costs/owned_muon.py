"""Muon on matrices that ranks own, as this project's client runs it (`runtime_client.optimizers.owned`).

In each round every rank gathers the next of its matrices in bfloat16, runs Newton-Schulz on it, and gives all ranks
their parts of the update. Sizes and peaks were recorded on fake process groups
(`tests/planner/costs/test_muon.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from planner.costs.muon import MuonStep
from planner.schema import DType, Parameter

_BFLOAT16 = DType.BFLOAT16.itemsize_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedRound:
    """Matrices of different owners that are updated at the same time."""

    matrices: tuple[MuonStep, ...]
    """As their owners see them: whole."""
    held_bytes: int
    """What this rank has of them, in bfloat16."""

    @property
    def flops(self) -> int:
        """Of the owner with most to do, for whom the others wait."""
        return max(matrix.flops for matrix in self.matrices)

    @property
    def exchanged_bytes(self) -> int:
        """What an owner receives, and gives back, at most: its matrix."""
        return max(matrix.whole_bytes for matrix in self.matrices)

    @property
    def transient_bytes(self) -> int:
        """Most bytes alive on an owner: the pieces, the matrix as gathered, two iterates and two Gram matrices."""
        return self.held_bytes + max(3 * matrix.whole_bytes + 2 * matrix.gram_bytes for matrix in self.matrices)


def owned_rounds(owners: Mapping[str, int], shards: Sequence[tuple[str, Parameter, int]]) -> list[OwnedRound]:
    """Rounds of one optimizer group.

    Args:
        owners: rank by full name; each rank takes its matrices in this order.
        shards: (full name, parameter, elements on this rank) of the group; those without an owner are left out.
    """
    members = {name: (parameter, elements) for name, parameter, elements in shards if name in owners}
    by_owner: dict[int, list[str]] = {}
    for name, owner in owners.items():
        if name in members:
            by_owner.setdefault(owner, []).append(name)
    return [
        OwnedRound(
            matrices=tuple(MuonStep.of(members[name][0], members[name][0].num_elements, 1) for name in names),
            held_bytes=sum(members[name][1] for name in names) * _BFLOAT16,
        )
        for names in ([name for name in one if name is not None] for one in zip_longest(*by_owner.values()))
    ]
