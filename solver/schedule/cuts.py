"""Redundant constraints that make the relaxation strong where paths compete.

Take an activity x that joins several paths, and the last activity a that all of them pass. The longest path from a
to x depends on which optional activities between them are present: f(l) for literals l of their conditions. Then
for each affine g with g(l) <= f(l) at every 0/1 point,

    e_x >= e_a + g(l)

holds for every assignment. The facets of the lower convex envelope of f are the strongest of these. The plain
precedences imply them only for integers: their relaxation lets a share of an optional activity slip into the gap
that a longer unconditional path leaves open.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

import numpy as np

from solver.schedule.problem import Activity, Barrier, Condition, Problem, Step

_NEVER = -(2**62)
MAX_WINDOW = 250
"""Steps between the two activities beyond which no cut is sought."""
MAX_LITERALS = 4
"""Conditions of one window whose combinations are enumerated."""


@dataclass(frozen=True, slots=True)
class Cut:
    """`e_later >= e_earlier + length + sum of extra_i l(when_i)`; step numbers of unconditional activities."""

    earlier: int
    later: int
    length: int
    terms: tuple[tuple[Condition, int], ...]


def path_cuts(problem: Problem) -> Iterator[Cut]:
    """Cuts for every unconditional activity, from where its paths part and from its neighbours on its chains."""
    ancestors: dict[int, int] = {}
    """For each unconditional activity the bits of itself and of all that come before it in every assignment."""
    last: dict[int, set[int]] = {}
    """For each chain the unconditional activities that its next one follows."""
    for number, step in enumerate(problem.steps):
        if step.when:
            continue
        if isinstance(step, Barrier) and step.activity in ancestors:
            last.setdefault(step.chain, set()).add(step.activity)
        elif isinstance(step, Activity):
            before = {item for chain in step.chains for item in last.get(chain, ())}
            before.update(wait for wait in step.waits if wait in ancestors)
            joined = {item for item in before if not any(_follows(ancestors, item, other) for other in before)}
            ancestors[number] = 1 << number
            for item in before:
                ancestors[number] |= ancestors[item]
            origins = {max(last[chain]) for chain in step.chains if last.get(chain)}
            meeting = _meeting(ancestors, joined) if len(joined) > 1 else None
            origins.update(() if meeting is None else (meeting,))
            for origin in sorted(origins):
                if number - origin <= MAX_WINDOW:
                    yield from _cuts_between(problem, origin, number)
            for chain in step.chains:
                last[chain] = {number}


def _follows(ancestors: dict[int, int], item: int, other: int) -> bool:
    """Whether `other` comes after `item`."""
    return other != item and bool(ancestors[other] >> item & 1)


def _meeting(ancestors: dict[int, int], joined: set[int]) -> int | None:
    """The last activity that comes before everything in `joined`."""
    common = -1
    for item in joined:
        common &= ancestors[item]
    return common.bit_length() - 1 if common > 0 else None


def _cuts_between(problem: Problem, earlier: int, later: int) -> Iterator[Cut]:
    window = enumerate(problem.steps[earlier : later + 1], start=earlier)
    timed: list[tuple[int, Step]] = [(n, step) for n, step in window if isinstance(step, Activity | Barrier)]
    conditions = tuple(sorted({step.when for _, step in timed if step.when}))
    if not conditions:
        return
    groups = [conditions] if len(conditions) <= MAX_LITERALS else [(item,) for item in conditions]
    for group in groups:
        values = tuple(
            _longest(timed, frozenset(when for when, chosen in zip(group, point, strict=True) if chosen))
            for point in product((0, 1), repeat=len(group))
        )
        if values[0] <= _NEVER:
            continue
        for length, *extras in lower_facets(values):
            terms = tuple((when, extra) for when, extra in zip(group, extras, strict=True) if extra)
            if terms:
                yield Cut(earlier, later, length, terms)


def _longest(timed: list[tuple[int, Step]], present: frozenset[Condition]) -> int:
    """Longest path from the end of the first activity to that of the last, optional steps present as said."""
    (first, origin), *rest = timed
    assert isinstance(origin, Activity)
    chains = dict.fromkeys(origin.chains, 0)
    ends = {first: 0}
    for number, step in rest:
        if step.when and step.when not in present:
            continue
        if isinstance(step, Barrier):
            chains[step.chain] = max(chains.get(step.chain, _NEVER), ends.get(step.activity, _NEVER))
        elif isinstance(step, Activity):
            start = max(
                [chains.get(chain, _NEVER) for chain in step.chains]
                + [ends.get(wait, _NEVER) for wait in step.waits]
            )
            ends[number] = start + step.duration if start > _NEVER else _NEVER
            for chain in step.chains:
                chains[chain] = max(chains.get(chain, _NEVER), ends[number])
    return ends[rest[-1][0]]


@lru_cache(maxsize=4096)
def lower_facets(values: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Facets of the lower convex envelope of a function on the 0/1 points of a cube.

    Args:
        values: the function at `product((0, 1), repeat=k)`, in that order.

    Returns:
        `(constant, coefficient_1, .., coefficient_k)` of affine functions that nowhere exceed it; integral by
        rounding down, which keeps them valid.
    """
    k = (len(values) - 1).bit_length()
    points = np.array([(1, *point) for point in product((0, 1), repeat=k)], dtype=np.float64)
    heights = np.array(values, dtype=np.float64)
    found: set[tuple[int, ...]] = set()
    for chosen in combinations(range(len(values)), k + 1):
        corners = points[list(chosen)]
        if abs(np.linalg.det(corners)) < 0.5:
            continue
        plane = np.linalg.solve(corners, heights[list(chosen)])
        if (points @ plane <= heights + 1e-6 * max(1.0, float(np.abs(heights).max()))).all():
            found.add(_integral(plane, points, values))
    return tuple(sorted(found))


def _integral(plane: np.ndarray, points: np.ndarray, values: tuple[int, ...]) -> tuple[int, ...]:
    """Integer coefficients near the plane's, with the largest constant that keeps them valid."""
    coefficients = [round(float(value)) for value in plane[1:]]
    constant = min(
        value - sum(c for c, bit in zip(coefficients, point[1:], strict=True) if bit)
        for value, point in zip(values, points, strict=True)
    )
    return (constant, *coefficients)
