"""Whether matrices can be owned within given loads: by the sets of classes that one owner can take.

With n_c equal matrices of class c, a *pattern* a takes a_c <= n_c of them within the loads. All matrices are owned
exactly if

    sum_a y_a <= num_owners,   sum_a a_c y_a >= n_c for every class c

has an integer solution (Gilmore and Gomory 1961); patterns to which nothing can be added are enough.
"""

from collections.abc import Iterator, Sequence

from ortools.sat.python import cp_model

MAX_PATTERNS = 20_000
"""Patterns that are looked at, maximal or not."""
MAX_CLASSES = 32
Pattern = tuple[int, ...]
"""How many matrices of each class."""


class TooManyPatterns(Exception):
    """The classes have more patterns than are worth enumerating."""


def maximal_patterns(
    sizes: Sequence[tuple[int, int]], counts: Sequence[int], work: int, size_bytes: int
) -> list[Pattern]:
    """Patterns within the loads to which no further matrix can be added.

    Raises:
        TooManyPatterns: there are more than `MAX_PATTERNS`, or too many classes to list any.
    """
    if len(sizes) > MAX_CLASSES:
        raise TooManyPatterns
    found: list[Pattern] = []
    for number, pattern in enumerate(_patterns(sizes, counts, work, size_bytes)):
        if number == MAX_PATTERNS:
            raise TooManyPatterns
        left_work = work - sum(n * size[0] for n, size in zip(pattern, sizes, strict=True))
        left_bytes = size_bytes - sum(n * size[1] for n, size in zip(pattern, sizes, strict=True))
        if all(
            n == count or size[0] > left_work or size[1] > left_bytes
            for n, count, size in zip(pattern, counts, sizes, strict=True)
        ):
            found.append(pattern)
    return found


def cover(patterns: Sequence[Pattern], counts: Sequence[int], num_owners: int, effort: float) -> list[int] | None:
    """How often each pattern is used so that all matrices are owned; None when that cannot be.

    Args:
        patterns: of one owner.
        counts: matrices of each class.
        num_owners: owners.
        effort: deterministic time of CP-SAT.

    Raises:
        TimeoutError: the effort did not suffice to tell.
    """
    model = cp_model.CpModel()
    used = [model.new_int_var(0, num_owners, "") for _ in patterns]
    model.add(cp_model.LinearExpr.sum(used) <= num_owners)
    for number, count in enumerate(counts):
        model.add(cp_model.LinearExpr.weighted_sum(used, [pattern[number] for pattern in patterns]) >= count)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.linearization_level = 2
    solver.parameters.max_deterministic_time = effort
    match solver.solve(model):
        case cp_model.OPTIMAL | cp_model.FEASIBLE:
            return [solver.value(variable) for variable in used]
        case cp_model.INFEASIBLE:
            return None
        case _:
            raise TimeoutError


def _patterns(
    sizes: Sequence[tuple[int, int]], counts: Sequence[int], work: int, size_bytes: int
) -> Iterator[Pattern]:
    """All patterns that take as many of the last class as fit."""
    if not sizes:
        yield ()
        return
    (own_work, own_bytes), count = sizes[0], counts[0]
    most = min(
        count,
        work // own_work if own_work else count,
        size_bytes // own_bytes if own_bytes else count,
    )
    for number in range(most, most - 1 if len(sizes) == 1 else -1, -1):
        for rest in _patterns(sizes[1:], counts[1:], work - number * own_work, size_bytes - number * own_bytes):
            yield (number, *rest)
