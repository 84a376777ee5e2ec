"""Regular ways to give the members of a class their values, and to change an assignment."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from solver.schedule.problem import Assignment, Problem

Counts = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Classes as (decisions in order, how many of them take each value)."""
Spread = Callable[[Sequence[int]], list[int]]
"""From how many take each value to the values in order."""


def first(counts: Sequence[int]) -> list[int]:
    """Defaults (value 0) last."""
    return [value for value in (*range(1, len(counts)), 0) for _ in range(counts[value])]


def last(counts: Sequence[int]) -> list[int]:
    """Defaults first."""
    return [value for value, count in enumerate(counts) for _ in range(count)]


def falling(counts: Sequence[int]) -> list[int]:
    """The highest values first."""
    return last(counts)[::-1]


def even(counts: Sequence[int]) -> list[int]:
    """Each value at equal distances."""
    places = [((2 * i + 1) / (2 * count), value) for value, count in enumerate(counts) for i in range(count)]
    return [value for _, value in sorted(places)]


SPREADS: tuple[Spread, ...] = (even, first, last, falling)


def placements(problem: Problem, counts: Counts) -> Iterator[Assignment]:
    """Assignments with so many of each class at each value; every family by every spread."""
    family = {decision: number for number, one in enumerate(problem.families) for decision in one.decisions}
    spread_families = sorted({family.get(members[0], -1) for members, numbers in counts if is_mixed(numbers)})
    for spreads in product(SPREADS, repeat=len(spread_families)):
        chosen = dict(zip(spread_families, spreads, strict=True))
        assignment = [0] * problem.num_decisions
        for members, numbers in counts:
            spread = chosen.get(family.get(members[0], -1), first)
            for decision, value in zip(members, spread(numbers), strict=True):
                assignment[decision] = value
        yield tuple(assignment)


def is_mixed(counts: Sequence[int]) -> bool:
    """Whether members of a class take different values."""
    return sum(count > 0 for count in counts) > 1


def with_values(assignment: Assignment, values: Mapping[int, int]) -> Assignment:
    """The assignment with some decisions changed."""
    changed = list(assignment)
    for decision, value in values.items():
        changed[decision] = value
    return tuple(changed)
