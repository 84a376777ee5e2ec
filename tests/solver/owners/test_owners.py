"""Owners against every assignment, and by hand."""

from itertools import product
from random import Random

import pytest

from solver.owners.patterns import TooManyPatterns, cover, maximal_patterns
from solver.owners.problem import Matrix, OwnersProblem, average_bound
from solver.owners.search import longest_first, solve


def problem(*sizes: tuple[int, int], owners: int) -> OwnersProblem:
    return OwnersProblem(
        matrices=tuple(
            Matrix(name=str(number), work=work, size_bytes=size_bytes)
            for number, (work, size_bytes) in enumerate(sizes)
        ),
        num_owners=owners,
    )


def random_problem(seed: int) -> OwnersProblem:
    rng = Random(seed)
    kinds = [(rng.randint(0, 20), rng.randint(0, 9)) for _ in range(rng.randint(1, 4))]
    return problem(*(rng.choice(kinds) for _ in range(rng.randint(1, 7))), owners=rng.randint(1, 3))


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_against_every_assignment(first: int) -> None:
    for seed in range(first, first + 30):
        asked = random_problem(seed)
        least = min(
            asked.largest(owners) for owners in product(range(asked.num_owners), repeat=len(asked.matrices))
        )
        found = solve(asked)
        assert found.is_optimal, seed
        assert (found.largest_work, found.largest_bytes) == asked.largest(found.owners) == least, seed


def test_longest_first_is_not_the_best() -> None:
    """5 5 4 4 3 3 3 on three owners: longest first ends at 11, the best is 9 (Graham 1969)."""
    asked = problem(*((work, 1) for work in (5, 5, 4, 4, 3, 3, 3)), owners=3)
    assert asked.largest(longest_first(asked))[0] == 11
    found = solve(asked)
    assert (found.largest_work, found.work_lower_bound, found.is_optimal) == (9, 9, True)


def test_bytes_are_balanced_where_work_is() -> None:
    """Work 2 each on two owners, in two ways: bytes 10 + 1 on each rather than 20 and 2."""
    found = solve(problem((1, 10), (1, 10), (1, 1), (1, 1), owners=2))
    assert (found.largest_work, found.largest_bytes, found.bytes_lower_bound) == (2, 11, 11)


def test_fewer_matrices_than_owners() -> None:
    found = solve(problem((7, 3), (2, 3), owners=4))
    assert (found.largest_work, found.largest_bytes, found.is_optimal) == (7, 3, True)
    assert len(set(found.owners)) == 2
    assert solve(problem(owners=4)).owners == ()


def test_the_bound_on_what_meets() -> None:
    """Five on two owners: some owner has three of the five largest."""
    assert average_bound([10, 10, 9, 9, 8], 2) == 26
    assert average_bound([10, 1], 4) == 10
    assert average_bound([], 4) == 0


def test_where_patterns_are_too_many_the_bound_is_still_one() -> None:
    rng = Random(3)
    asked = problem(*((rng.randint(1000, 9999), 1) for _ in range(200)), owners=3)
    found = solve(asked)
    assert found.work_lower_bound == average_bound([m.work for m in asked.matrices], 3) <= found.largest_work
    assert found.largest_work <= asked.largest(longest_first(asked))[0]


def test_patterns() -> None:
    """Loads of 7: two threes, or a three and two twos, or three twos; a third two beside the three is too much."""
    sizes, counts = [(3, 1), (2, 1)], [2, 4]
    assert sorted(maximal_patterns(sizes, counts, 7, 100)) == [(0, 3), (1, 2), (2, 0)]
    assert sorted(maximal_patterns(sizes, counts, 7, 2)) == [(0, 2), (1, 1), (2, 0)]
    assert cover([(0, 3), (1, 2), (2, 0)], counts, 2, 1.0) == [0, 2, 0]
    assert cover([(0, 3), (1, 2), (2, 0)], counts, 1, 1.0) is None
    with pytest.raises(TooManyPatterns):
        maximal_patterns([(1 + n, 1) for n in range(30)], [3] * 30, 300, 100)


@pytest.mark.parametrize(
    ("sizes", "owners"), [([(1, 1)], 0), ([(-1, 1)], 1), ([(1, -1)], 1)], ids=["owner", "work", "bytes"]
)
def test_what_is_no_problem(sizes: list[tuple[int, int]], owners: int) -> None:
    with pytest.raises(ValueError, match="must"):
        problem(*sizes, owners=owners)


def test_names_differ() -> None:
    matrix = Matrix(name="a", work=1, size_bytes=1)
    with pytest.raises(ValueError, match="names"):
        OwnersProblem(matrices=(matrix, matrix), num_owners=1)
