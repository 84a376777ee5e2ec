"""Owners of the matrices that Muon needs whole and the layout cuts."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.costs.muon import MuonStep
from planner.layout.pieces import pieces
from planner.layout.planned import PlannedUnit
from planner.schema import DType, Parameter
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
    solved = solve(problem)
    return PlannedOwners(
        names=tuple(name for name, _ in owned),
        solved=solved,
        loads=_loads(problem, solved, units),
        longest_first_flops=problem.largest(longest_first(problem))[0],
    )


def _matrix(name: str, parameter: Parameter) -> Matrix:
    step = MuonStep.of(parameter, parameter.num_elements, 1)
    return Matrix(name=name, work=step.flops, size_bytes=step.whole_bytes)


def _loads(problem: OwnersProblem, solved: Owners, units: Sequence[PlannedUnit]) -> tuple[OwnerLoad, ...]:
    owner_of = {matrix.name: owner for matrix, owner in zip(problem.matrices, solved.owners, strict=True)}
    held_bytes = [0] * problem.num_owners
    for unit in units:
        for buffer in unit.buffers:
            for piece in pieces(buffer.layout) if buffer.owned else ():
                if owner_of.get(piece.parameter) == piece.rank:
                    held_bytes[piece.rank] += piece.num_elements * _UPDATE_BYTES
    num_matrices = [solved.owners.count(owner) for owner in range(problem.num_owners)]
    return tuple(
        OwnerLoad(num_matrices=number, flops=flops, whole_bytes=size_bytes, gathered_bytes=size_bytes - held)
        for number, (flops, size_bytes), held in zip(
            num_matrices, problem.loads(solved.owners), held_bytes, strict=True
        )
    )
