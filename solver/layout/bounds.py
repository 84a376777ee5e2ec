"""Shard sizes that no order of the tensors can have, and with them a lower bound.

All of it follows from sizes and atoms alone, so it also leaps over shard sizes when a search scans them upwards.
Ranks that differ are only bounded by their sum and by the alignment.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd, lcm

from solver.layout.problem import LayoutProblem

MAX_DIVISORS = 64
"""Common divisors of atoms that are looked at."""

_Size = tuple[int, int]
"""Elements and atom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Divisor:
    """A common divisor of the sizes and atoms of most tensors."""

    divisor: int
    divisible_elements: int
    indivisible: Mapping[_Size, int]
    """The other tensors, of which a piece may be no multiple."""
    num_indivisible: int


class ShardSizes:
    """The shard sizes that simple arguments leave open."""

    def __init__(self, problem: LayoutProblem) -> None:
        self._alignment = problem.alignment_elements
        self._num_ranks = problem.num_ranks
        self._total = problem.num_elements
        self._least = -(-self._total // problem.num_shares)
        self._counts: Mapping[_Size, int] = Counter(tensor.size for tensor in problem.tensors)
        self._sizes = sorted(self._counts)
        is_equal = not problem.shares
        if is_equal:
            self._least = max(self._least, self._pigeonhole())
        self._halves, self._multiples = self._common_multiples() if is_equal else ([], [])
        self._gaps = _joined([_gap(*size) for size in self._sizes]) if is_equal else []
        self._divisors = [self._divisor(divisor) for divisor in self.divisors()] if is_equal else []
        self._divisors = [one for one in self._divisors if self._may_bind(one)]

    def next_open(self, shard_elements: int) -> int:
        """Least S, at least the given one, that no argument excludes; 0 asks for the bound of the problem."""
        found = max(shard_elements, self._least)
        while True:
            before = found
            found = self._after_gap(self._next_multiple(found))
            for divisor in self._divisors:
                found = max(found, self._least_content(found, divisor))
            if found == before:
                return found

    def divisors(self) -> tuple[int, ...]:
        """Common divisors of the atoms that hold most elements, the largest first."""
        by_mass = sorted(self._counts, key=lambda size: (-size[0] * self._counts[size], size))
        found = set(accumulate((atom for _, atom in by_mass), gcd)) | {atom for _, atom in by_mass}
        found |= set(accumulate(sorted(found, reverse=True), gcd))
        return tuple(sorted((d for d in found if d > 1), reverse=True)[:MAX_DIVISORS])

    def _pigeonhole(self) -> int:
        """Of the k m + 1 largest whole tensors, some rank holds k + 1."""
        whole = sorted(
            (size[0] for size, count in self._counts.items() if size[1] >= size[0] for _ in range(count)),
            reverse=True,
        )
        ranks = self._num_ranks
        return max(
            (sum(whole[ranks * k - i] for i in range(k + 1)) for k in range(-(-len(whole) // ranks))), default=1
        )

    def _common_multiples(self) -> tuple[list[int], list[int]]:
        """For each e // 2, rising, the common multiple of the atoms of all tensors whose half is not smaller.

        Multiples that are larger than all tensors together are as good as infinite and not multiplied further.
        """
        halves: list[int] = []
        multiples: list[int] = []
        multiple = self._alignment
        for elements, atom in reversed(self._sizes):
            if multiple <= self._total:
                multiple = lcm(multiple, atom)
            if halves and halves[-1] == elements // 2:
                multiples[-1] = multiple
            else:
                halves.append(elements // 2)
                multiples.append(multiple)
        return halves[::-1], multiples[::-1]

    def _next_multiple(self, least: int) -> int:
        """A tensor of at least 2 S elements has two inner edges or starts on an edge, so its atom divides S."""
        while True:
            index = bisect_left(self._halves, least)
            if index == len(self._halves):
                return _round_up(least, self._alignment)
            multiple = _round_up(least, self._multiples[index])
            if multiple <= self._halves[index]:
                return multiple
            least = self._halves[index] + 1

    def _after_gap(self, least: int) -> int:
        """The end of the gap that a shard size lies in, or itself."""
        index = bisect_right(self._gaps, (least, self._total)) - 1
        return max(least, self._gaps[index][1]) if index >= 0 else least

    def _divisor(self, divisor: int) -> _Divisor:
        indivisible = {
            size: count for size, count in self._counts.items() if size[0] % divisor or size[1] % divisor
        }
        return _Divisor(
            divisor=divisor,
            divisible_elements=self._total - sum(size[0] * count for size, count in indivisible.items()),
            indivisible=indivisible,
            num_indivisible=sum(indivisible.values()),
        )

    def _may_bind(self, one: _Divisor) -> bool:
        """Some rank is sure to hold no indivisible tensor, or the divisible ones nearly fill all ranks."""
        needed = self._total - self._num_ranks * one.divisor
        return one.num_indivisible < self._num_ranks or one.divisible_elements > needed

    def _least_content(self, least: int, one: _Divisor) -> int:
        """Ranks without a piece of an indivisible tensor hold a multiple of the divisor.

        With q ranks that may have such a piece, E <= (m - q) d floor(S / d) + q S; and the pieces that are
        multiples of d fill no more than m d floor(S / d).
        """
        divisor, ranks = one.divisor, self._num_ranks
        touched = ranks
        if one.num_indivisible < ranks:
            touched = min(touched, sum(count * _ranks(*size, least) for size, count in one.indivisible.items()))
        while True:
            filled = least // divisor * divisor
            fits = one.divisible_elements <= ranks * filled
            short = self._total - (ranks - touched) * filled
            if fits and short <= touched * least:
                return least
            enough = -(-short // touched) if fits and touched else 0
            if least < enough < filled + divisor:
                return enough
            least = filled + divisor


def _ranks(num_elements: int, atom: int, shard_elements: int) -> int:
    """Most ranks that a tensor can have pieces on."""
    return 1 if atom >= num_elements else (num_elements - 2) // shard_elements + 2


def _gap(num_elements: int, atom: int) -> tuple[int, int]:
    """Shard sizes from the first on and below the second have no place for a tensor of less than 2 S elements.

    With more than S it needs a multiple of its atom between e - S and S.
    """
    atoms = num_elements // (2 * atom)
    if num_elements < (2 * atoms + 1) * atom:
        end = max(atoms * atom, num_elements - atoms * atom)
    else:
        end = (atoms + 1) * atom
    return num_elements // 2 + 1, min(end, num_elements)


def _joined(gaps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Gaps in order, overlapping ones as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(gap for gap in gaps if gap[0] < gap[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
