"""Owners of the matrices that Muon needs whole and the layout cuts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.costs.muon import MuonStep
from planner.layout.planned import PlannedUnit
from planner.program.pieces import pieces
from planner.schema import DType, MatrixOwner, Parameter
from solver.owners.problem import Matrix, Owners, OwnersProblem
from solver.owners.search import longest_first, solve

_UPDATE_BYTES = DType.BFLOAT16.itemsize_bytes
"""Of an element as gathered and given back: the iteration runs in bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLoad:
    """What one rank does as an owner, in one optimizer step."""

    num_matrices: int
    flops: int
    """Of Newton-Schulz iterations."""
    whole_bytes: int
    """Of its matrices as gathered."""
    gathered_bytes: int
    """Received from the other ranks; as many go back to them as updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOwners:
    """Who updates which matrix."""

    names: tuple[str, ...]
    solved: Owners
    """`solved.owners[i]` is the shard rank that owns `names[i]`; work is FLOPs."""
    loads: tuple[OwnerLoad, ...]
    longest_first_flops: int
    """Largest work of an owner under LPT."""


def plan_owners(units: Sequence[PlannedUnit], num_ranks: int) -> PlannedOwners | None:
    """Owners balanced over all units on FLOPs, then on bytes; None where no matrix needs one."""
    owned = [
        (name, parameter)
        for unit in units
        for buffer in unit.buffers
        for name, parameter in buffer.parameters
        if name in buffer.owned
    ]
    if not owned:
        return None
    problem = OwnersProblem(matrices=tuple(_matrix(*one) for one in owned), num_owners=num_ranks)
    held = _held_bytes(units)
    solved = _where_most_is_held(problem, solve(problem), held)
    return PlannedOwners(
        names=tuple(name for name, _ in owned),
        solved=solved,
        loads=_loads(problem, solved, held),
        longest_first_flops=problem.largest(longest_first(problem))[0],
    )


def owners_of(matrices: Sequence[tuple[str, Parameter]], num_ranks: int) -> tuple[MatrixOwner, ...]:
    """Owners of matrices of any sharding, balanced on FLOPs and bytes; each takes its costliest matrices first.

    Args:
        matrices: (full name, parameter).
        num_ranks: shard degree.
    """
    problem = OwnersProblem(matrices=tuple(_matrix(*one) for one in matrices), num_owners=num_ranks)
    found = zip(problem.matrices, solve(problem).owners, strict=True)
    costliest = sorted(found, key=lambda one: (-one[0].work, -one[0].size_bytes))
    return tuple(MatrixOwner(parameter=matrix.name, rank=rank) for matrix, rank in costliest)


def _matrix(name: str, parameter: Parameter) -> Matrix:
    step = MuonStep.of(parameter, parameter.num_elements, 1)
    return Matrix(name=name, work=step.flops, size_bytes=step.whole_bytes)


def _held_bytes(units: Sequence[PlannedUnit]) -> Counter[tuple[str, int]]:
    """What each rank holds of each owned matrix."""
    found: Counter[tuple[str, int]] = Counter()
    for unit in units:
        for buffer in unit.buffers:
            for piece in pieces(buffer.layout) if buffer.owned else ():
                if piece.parameter in buffer.owned:
                    found[piece.parameter, piece.rank] += piece.num_elements * _UPDATE_BYTES
    return found


def _where_most_is_held(problem: OwnersProblem, solved: Owners, held: Mapping[tuple[str, int], int]) -> Owners:
    """The same sets of matrices on other ranks: loads do not say which, and what a rank holds it need not gather.

    The pair of a set and a rank that saves most comes first.
    """
    owner_of = {matrix.name: owner for matrix, owner in zip(problem.matrices, solved.owners, strict=True)}
    saved: Counter[tuple[int, int]] = Counter()
    for (name, rank), size_bytes in held.items():
        saved[owner_of[name], rank] += size_bytes
    rank_of: dict[int, int] = {}
    free = dict.fromkeys(range(problem.num_owners))
    for (owner, rank), _ in sorted(saved.items(), key=lambda item: (-item[1], item[0])):
        if owner not in rank_of and rank in free:
            rank_of[owner] = rank
            del free[rank]
    for owner in range(problem.num_owners):
        if owner not in rank_of:
            rank_of[owner] = next(iter(free))
            del free[rank_of[owner]]
    return replace(solved, owners=tuple(rank_of[owner] for owner in solved.owners))


def _loads(problem: OwnersProblem, solved: Owners, held: Mapping[tuple[str, int], int]) -> tuple[OwnerLoad, ...]:
    own = [0] * problem.num_owners
    for matrix, owner in zip(problem.matrices, solved.owners, strict=True):
        own[owner] += held.get((matrix.name, owner), 0)
    num_matrices = Counter(solved.owners)
    return tuple(
        OwnerLoad(
            num_matrices=num_matrices[owner],
            flops=flops,
            whole_bytes=size_bytes,
            gathered_bytes=size_bytes - own[owner],
        )
        for owner, (flops, size_bytes) in enumerate(problem.loads(solved.owners))
    )
