"""What sets of calls or units can keep at what cost, their options taken in fractions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

WEIGHTS = 8
"""Bounds on the computation and on the link are mixed in so many steps."""
Point = tuple[int, int]
"""(bytes kept, cost of keeping no more)."""


class Option(NamedTuple):
    """What a call or a unit can keep, and what that takes in backward."""

    kept_bytes: int
    compute_ns: int
    link_ns: int = 0

    def point(self, weight: int) -> Point:
        """Cost in parts of `WEIGHTS` ns, so many of them of the computation, the others of the link."""
        return self.kept_bytes, weight * self.compute_ns + (WEIGHTS - weight) * self.link_ns


Alike = tuple[Sequence[Option], int]
"""Options of so many calls or units."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Lower convex hull of what a set of calls or units can keep at what cost."""

    kept_bytes: int
    """Where nothing is spent that need not be."""
    spent: int
    segments: tuple[tuple[int, int], ...]
    """(bytes freed, cost), the cheapest bytes first."""

    @classmethod
    def of(cls, alike: Iterable[Alike], weight: int) -> "Mixture":
        """Of calls or units, with costs as in `Option.point`."""
        kept = spent = 0
        segments: list[tuple[int, int]] = []
        for options, num in alike:
            hull = _lower_hull([option.point(weight) for option in options])
            kept += num * hull[0][0]
            spent += num * hull[0][1]
            segments.extend(
                (num * (more - less), num * (dear - cheap)) for (more, cheap), (less, dear) in pairwise(hull)
            )
        return cls(kept, spent, tuple(sorted(segments, key=lambda segment: segment[1] / segment[0])))

    @property
    def leanest_bytes(self) -> int:
        """Whatever is spent."""
        return self.kept_bytes - sum(freed for freed, _ in self.segments)

    def least_bytes(self, most: int) -> int | None:
        """Kept when at most so much is spent; None where that is not enough."""
        left = most - self.spent
        if left < 0:
            return None
        kept = self.kept_bytes
        for freed, cost in self.segments:
            if cost > left:
                return kept - freed * left // cost
            kept -= freed
            left -= cost
        return kept

    def least_spent(self, most_bytes: int) -> int | None:
        """Spent when at most so much is kept; None where that is not possible."""
        spent, excess = self.spent, self.kept_bytes - most_bytes
        for freed, cost in self.segments:
            if excess <= freed:
                return spent + cost * max(0, excess) // freed
            spent += cost
            excess -= freed
        return None if excess > 0 else spent

    @property
    def most_spent(self) -> int:
        """When as little as possible is kept."""
        return self.spent + sum(cost for _, cost in self.segments)


def _lower_hull(points: Sequence[Point]) -> list[Point]:
    """Points from the cheapest to the leanest that no mixture of two others beats."""
    hull: list[Point] = []
    for kept, spent in sorted(points, key=lambda point: (point[1], point[0])):
        if hull and kept >= hull[-1][0]:
            continue
        while len(hull) > 1:
            (k0, s0), (k1, s1) = hull[-2], hull[-1]
            if (s1 - s0) * (k0 - kept) < (spent - s0) * (k0 - k1):
                break
            hull.pop()
        hull.append((kept, spent))
    return hull
