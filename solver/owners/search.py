"""Owners with the least largest load, and a proof."""

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

from solver.owners.patterns import Pattern, TooManyPatterns, cover, maximal_patterns
from solver.owners.problem import Owners, OwnersProblem, average_bound

EFFORT = 2.0
"""Deterministic seconds of CP-SAT for one question."""


def solve(problem: OwnersProblem, effort: float = EFFORT) -> Owners:
    """The least largest work, then the least largest bytes with it.

    Longest processing time first gives a start; loads between bound and start are bisected by whether some patterns
    of equal matrices cover all (`solver.owners.patterns`). Where that takes too long, the bound is what is proven.

    Args:
        problem: matrices and owners.
        effort: deterministic time of CP-SAT for each question.
    """
    if not problem.matrices:
        return Owners(owners=(), largest_work=0, largest_bytes=0, work_lower_bound=0, bytes_lower_bound=0)
    search = _Search(problem, effort)
    total_bytes = sum(matrix.size_bytes for matrix in problem.matrices)
    owners = longest_first(problem)
    owners, work_bound = search.bisect(
        owners,
        average_bound([matrix.work for matrix in problem.matrices], problem.num_owners),
        lambda owners: problem.largest(owners)[0],
        lambda load: (load, total_bytes),
    )
    work = problem.largest(owners)[0]
    owners, bytes_bound = search.bisect(
        owners,
        average_bound([matrix.size_bytes for matrix in problem.matrices], problem.num_owners),
        lambda owners: problem.largest(owners)[1],
        lambda load: (work, load),
    )
    work, size_bytes = problem.largest(owners)
    return Owners(
        owners=tuple(owners),
        largest_work=work,
        largest_bytes=size_bytes,
        work_lower_bound=work_bound,
        bytes_lower_bound=bytes_bound,
    )


def longest_first(problem: OwnersProblem) -> list[int]:
    """LPT: the matrix with most work next, to the owner with least; at most 4/3 of the best (Graham 1969)."""
    falling = sorted(range(len(problem.matrices)), key=lambda number: problem.matrices[number].size, reverse=True)
    heap = [(0, 0, owner) for owner in range(problem.num_owners)]
    heapify(heap)
    owners = [0] * len(problem.matrices)
    for number in falling:
        work, size_bytes, owner = heap[0]
        matrix = problem.matrices[number]
        owners[number] = owner
        heapreplace(heap, (work + matrix.work, size_bytes + matrix.size_bytes, owner))
    return owners


class _Search:
    def __init__(self, problem: OwnersProblem, effort: float) -> None:
        self._problem = problem
        self._effort = effort
        members: dict[tuple[int, int], list[int]] = {}
        for number, matrix in enumerate(problem.matrices):
            members.setdefault(matrix.size, []).append(number)
        self._members = [members[size] for size in sorted(members, reverse=True)]
        self._sizes = sorted(members, reverse=True)

    def bisect(
        self,
        owners: list[int],
        bound: int,
        value: Callable[[Sequence[int]], int],
        loads: Callable[[int], tuple[int, int]],
    ) -> tuple[list[int], int]:
        """The best owners for `value`, and its bound, given the loads that a value allows."""
        while bound < value(owners):
            middle = (bound + value(owners) - 1) // 2
            try:
                found = self._within(*loads(middle))
            except (TooManyPatterns, TimeoutError):
                break
            if found is None:
                bound = middle + 1
            else:
                owners = found
        return owners, bound

    def _within(self, work: int, size_bytes: int) -> list[int] | None:
        """Owners whose loads are at most these."""
        counts = [len(numbers) for numbers in self._members]
        patterns = maximal_patterns(self._sizes, counts, work, size_bytes)
        used = cover(patterns, counts, self._problem.num_owners, self._effort)
        return None if used is None else self._spread(patterns, used)

    def _spread(self, patterns: Sequence[Pattern], used: Sequence[int]) -> list[int]:
        """Matrices to owners by patterns; who comes late takes what is left."""
        waiting = [list(numbers) for numbers in self._members]
        owners = [0] * len(self._problem.matrices)
        chosen = [pattern for pattern, times in zip(patterns, used, strict=True) for _ in range(times)]
        for owner, pattern in enumerate(chosen):
            for numbers, count in zip(waiting, pattern, strict=True):
                for number in numbers[:count]:
                    owners[number] = owner
                del numbers[:count]
        return owners
