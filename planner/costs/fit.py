"""Least squares with coefficients that are not negative, for a few features: exact, so the same everywhere.

Of `min sum(((sum_j c_j f_ij) / t_i - 1)^2)` subject to `c >= 0`, the solution is the best among the unconstrained
ones over all subsets of features that happen to be feasible (Lawson and Hanson, Solving Least Squares Problems,
SIAM 1995, chapter 23, which searches the subsets in a cleverer order; here are at most three features, so seven
subsets). Residuals are relative: a block of 1 ms counts like one of 1 s.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

Row = tuple[Fraction, ...]


@lru_cache(maxsize=4096)
def nonnegative_fit(rows: tuple[Row, ...], times: tuple[int, ...]) -> Row | None:
    """Coefficients of each feature; None where no subset of features has a solution.

    Args:
        rows: features of each point.
        times: what was measured there; above 0.
    """
    scaled = [tuple(feature / time for feature in row) for row, time in zip(rows, times, strict=True)]
    feasible = [found for found in _solutions(scaled, len(rows[0])) if min(found) >= 0]
    return min(feasible, key=lambda found: _loss(scaled, found), default=None)


def _solutions(rows: Sequence[Row], num_features: int) -> Iterator[Row]:
    """Of every subset of features, the largest first; ties go to the first."""
    for size in range(min(num_features, len(rows)), 0, -1):
        for chosen in combinations(range(num_features), size):
            solved = _least_squares([[row[place] for place in chosen] for row in rows])
            if solved is not None:
                found = dict(zip(chosen, solved, strict=True))
                yield tuple(found.get(place, Fraction(0)) for place in range(num_features))


def _loss(rows: Sequence[Row], coefficients: Row) -> Fraction:
    return sum(
        ((sum((c * f for c, f in zip(coefficients, row, strict=True)), Fraction(-1))) ** 2 for row in rows),
        Fraction(0),
    )


def _least_squares(rows: list[list[Fraction]]) -> list[Fraction] | None:
    """Coefficients for which every row is as near to 1 as can be, by the normal equations; None when singular."""
    size = len(rows[0])
    system = [
        [sum((row[i] * row[j] for row in rows), Fraction(0)) for j in range(size)]
        + [sum((row[i] for row in rows), Fraction(0))]
        for i in range(size)
    ]
    for column in range(size):
        pivot = next((line for line in range(column, size) if system[line][column]), None)
        if pivot is None:
            return None
        system[column], system[pivot] = system[pivot], system[column]
        head = system[column][column]
        system[column] = [value / head for value in system[column]]
        for line in range(size):
            if line != column and system[line][column]:
                factor = system[line][column]
                system[line] = [a - factor * b for a, b in zip(system[line], system[column], strict=True)]
    return [line[size] for line in system]
