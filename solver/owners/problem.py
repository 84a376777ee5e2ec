"""The owners problem: whole matrices to ranks, so that the busiest rank has least to do.

An optimizer that needs whole matrices (Muon's Newton-Schulz iteration) gathers each one on its owner, which updates
it and gives every rank its part back. Makespan scheduling on identical machines (P || Cmax, NP-hard), then the same
for bytes: first the largest work of an owner is minimised, then, with that, the largest bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What one owner takes as a whole."""

    name: str
    work: int
    """FLOPs, or any other measure of time."""
    size_bytes: int

    @property
    def size(self) -> tuple[int, int]:
        """Work and bytes; matrices of equal size are interchangeable."""
        return self.work, self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnersProblem:
    """See the module docstring.

    Raises:
        ValueError: a number is negative, there is no owner, or names repeat.
    """

    matrices: tuple[Matrix, ...]
    num_owners: int

    def __post_init__(self) -> None:
        if self.num_owners < 1:
            raise ValueError("there must be an owner")
        if any(min(matrix.size) < 0 for matrix in self.matrices):
            raise ValueError("work and bytes must not be negative")
        if len({matrix.name for matrix in self.matrices}) < len(self.matrices):
            raise ValueError("names of matrices must differ")

    def loads(self, owners: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Work and bytes of each owner, `owners[i]` being that of matrix i."""
        found = [(0, 0)] * self.num_owners
        for owner, matrix in zip(owners, self.matrices, strict=True):
            work, size_bytes = found[owner]
            found[owner] = (work + matrix.work, size_bytes + matrix.size_bytes)
        return tuple(found)

    def largest(self, owners: Sequence[int]) -> tuple[int, int]:
        """Largest work and largest bytes of an owner."""
        loads = self.loads(owners)
        return max(work for work, _ in loads), max(size_bytes for _, size_bytes in loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """A solution. `owners[i]` is the rank that updates matrix i."""

    owners: tuple[int, ...]
    largest_work: int
    largest_bytes: int
    work_lower_bound: int
    """No assignment has an owner with less than this as the largest work."""
    bytes_lower_bound: int
    """No assignment with this largest work has a smaller largest number of bytes."""

    @property
    def is_optimal(self) -> bool:
        """Whether both bounds are reached."""
        return (self.largest_work, self.largest_bytes) == (self.work_lower_bound, self.bytes_lower_bound)


def average_bound(sizes: Sequence[int], num_owners: int) -> int:
    """Least largest load: the average, the largest, and what must meet when there are more sizes than owners.

    Of the k n + 1 largest of n owners, some owner has k + 1.
    """
    falling = sorted(sizes, reverse=True)
    bound = -(-sum(falling) // num_owners)
    for most in range(-(-len(falling) // num_owners)):
        bound = max(bound, sum(falling[num_owners * most - i] for i in range(most + 1)))
    return bound
