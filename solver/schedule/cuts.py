"""Redundant constraints that make the relaxation strong where paths compete.

Take an activity x that joins several paths, and the last activity a that all of them pass. The longest path from a
to x depends on which optional activities between them are present: f(l) for literals l of their conditions. Then
for each affine g with g(l) <= f(l) at every 0/1 point,

    e_x >= e_a + g(l)

holds for every assignment. The facets of the lower convex envelope of f are the strongest of these. The plain
precedences imply them only for integers: their relaxation lets a share of an optional activity slip into the gap
that a longer unconditional path leaves open.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

import numpy as np

from solver.schedule.problem import Activity, Barrier, Condition, Step

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


def path_cuts(steps: Sequence[Step]) -> Iterator[Cut]:
    """Cuts for every unconditional activity of a round: from where its paths part and its neighbours."""
    ancestors: dict[int, int] = {}
    """For each unconditional activity the bits of itself and of all that come before it in every assignment."""
    last: dict[int, set[int]] = {}
    """For each chain the unconditional activities that its next one follows."""
    for number, step in enumerate(steps):
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
                    yield from _cuts_between(steps, origin, number)
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


def _cuts_between(steps: Sequence[Step], earlier: int, later: int) -> Iterator[Cut]:
    window, conditions = _window(steps, earlier, later)
    if not conditions:
        return
    for facet in _facets(window, len(conditions)):
        length, terms = facet
        yield Cut(earlier, later, length, tuple((conditions[index], extra) for index, extra in terms))


_Window = tuple[tuple[bool, tuple[int, ...], int, tuple[int, ...], int], ...]
"""Activities and barriers between two activities, in a form that is the same wherever the same pattern repeats:
(is an activity, chains, duration, positions of the activities waited for, condition number or -1)."""


def _window(steps: Sequence[Step], earlier: int, later: int) -> tuple[_Window, list[Condition]]:
    positions: dict[int, int] = {}
    conditions: dict[Condition, int] = {}
    window: list[tuple[bool, tuple[int, ...], int, tuple[int, ...], int]] = []
    for number in range(earlier, later + 1):
        step = steps[number]
        if not isinstance(step, Activity | Barrier):
            continue
        when = conditions.setdefault(step.when, len(conditions)) if step.when else -1
        if isinstance(step, Activity):
            waits = tuple(positions[wait] for wait in step.waits if wait in positions)
            positions[number] = len(window)
            window.append((True, step.chains, step.duration, waits, when))
        elif step.activity in positions:
            window.append((False, (step.chain,), 0, (positions[step.activity],), when))
    return tuple(window), list(conditions)


@lru_cache(maxsize=4096)
def _facets(window: _Window, num_conditions: int) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
    """`(length, ((condition number, extra), ..))` of each useful facet."""
    everything = tuple(range(num_conditions))
    groups = [everything] if num_conditions <= MAX_LITERALS else [(number,) for number in everything]
    found = []
    for group in groups:
        values = tuple(
            _longest(window, frozenset(number for number, bit in zip(group, point, strict=True) if bit))
            for point in product((0, 1), repeat=len(group))
        )
        if values[0] <= _NEVER:
            continue
        for length, *extras in lower_facets(values):
            terms = tuple((number, extra) for number, extra in zip(group, extras, strict=True) if extra)
            if terms:
                found.append((length, terms))
    return tuple(found)


def _longest(window: _Window, present: frozenset[int]) -> int:
    """Longest path from the end of the first activity to that of the last, optional steps present as said."""
    chains = dict.fromkeys(window[0][1], 0)
    ends = [_NEVER] * len(window)
    ends[0] = 0
    for position, (is_activity, targets, duration, waits, when) in enumerate(window):
        if position == 0 or (when >= 0 and when not in present):
            continue
        before = [ends[wait] for wait in waits]
        start = max([chains.get(chain, _NEVER) for chain in targets] + before)
        if is_activity:
            start = start + duration if start > _NEVER else _NEVER
            ends[position] = start
        for chain in targets:
            chains[chain] = max(chains.get(chain, _NEVER), start)
    return ends[-1]


@lru_cache(maxsize=4096)
def lower_facets(values: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Facets of the lower convex envelope of a function on the 0/1 points of a cube.

    Args:
        values: the function at `product((0, 1), repeat=k)`, in that order.

    Returns:
        `(constant, coefficient_1, .., coefficient_k)` of affine functions that nowhere exceed it; integral by
        rounding down, which keeps them valid.
    """
    points, corners, inverses = _simplices((len(values) - 1).bit_length())
    heights = np.array(values, dtype=np.float64)
    planes = np.einsum("nij,nj->ni", inverses, heights[corners])
    tolerance = 1e-6 * max(1.0, float(np.abs(heights).max()))
    below = (planes @ points.T <= heights + tolerance).all(axis=1)
    coefficients = np.unique(np.rint(planes[below, 1:]).astype(np.int64), axis=0)
    levels = np.array(values, dtype=np.int64) - coefficients @ points[:, 1:].T.astype(np.int64)
    constants = levels.min(axis=1)
    return tuple((int(c), *map(int, row)) for c, row in zip(constants, coefficients, strict=True))


@lru_cache(maxsize=8)
def _simplices(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points of the cube as rows (1, bits); corners of all simplices among them; inverses of the corners' rows."""
    points = np.array([(1, *point) for point in product((0, 1), repeat=k)], dtype=np.float64)
    corners = np.array(list(combinations(range(len(points)), k + 1)))
    matrices = points[corners]
    independent = np.abs(np.linalg.det(matrices)) > 0.5
    return points, corners[independent], np.linalg.inv(matrices[independent])
