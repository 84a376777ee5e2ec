"""Regular ways to pick members of a family, and to change an assignment."""

from collections.abc import Callable, Mapping

from solver.schedule.problem import Assignment

Spread = Callable[[tuple[int, ...], int], list[int]]


def first(members: tuple[int, ...], count: int) -> list[int]:
    """The first `count` members."""
    return list(members[:count])


def last(members: tuple[int, ...], count: int) -> list[int]:
    """The last `count` members."""
    return list(members[len(members) - count :])


def even(members: tuple[int, ...], count: int) -> list[int]:
    """`count` members at equal distances."""
    return [members[(2 * i + 1) * len(members) // (2 * count)] for i in range(count)]


SPREADS: tuple[Spread, ...] = (first, last, even)


def with_values(assignment: Assignment, values: Mapping[int, int]) -> Assignment:
    """The assignment with some decisions changed."""
    changed = list(assignment)
    for decision, value in values.items():
        changed[decision] = value
    return tuple(changed)
