"""The smallest shards that an order of the tensors allows, and a bound on them."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, takewhile
from math import lcm

from solver.layout.bounds import ShardSizes
from solver.layout.fill import Effort, Filler
from solver.layout.grid import Grid
from solver.layout.orders import Offsets, place, place_with_gaps_filled, sorted_orders
from solver.layout.problem import Layout, LayoutProblem

WIDTHS = (1, 8, 64, 512, 65_536)
"""Partial layouts kept a layer, round after round."""
CLIMBED = 16
"""Open shard sizes above the bound that a round tries one by one; the last round goes on."""
FIRST_CLIMBED = 4
"""The same before sorted orders are bisected."""
MAX_CLASSES = 64
"""Above it only sorted orders are tried: one layer of a filling would cost as much as an order."""

_Attempt = Callable[[int], bool]
"""Whether a layout with this shard size was found."""


def default_effort(problem: LayoutProblem) -> Effort:
    """A tenth of a second for few tensors, a second or two for 10,000."""
    return Effort(100_000 + 100 * len(problem.tensors))


def solve(problem: LayoutProblem, effort: Effort | None = None) -> Layout:
    """Search shard sizes and orders.

    Sorted orders are tried as published (arXiv 2602.22437), over multiples of growing common multiples of the
    atoms; then fillings of ever more width, from the bound upwards and by bisection between bound and best. A
    shard size is excluded when an exact filling finds nothing. Where the given order does as well, it is kept.

    Args:
        problem: tensors, ranks and alignment.
        effort: placements to try, used up as it goes; None takes `default_effort`.
    """
    return _Search(problem, effort or default_effort(problem)).run()


def solve_in_given_order(problem: LayoutProblem, effort: Effort | None = None) -> Layout:
    """The smallest shards found by bisection without changing the order; the bound is that of any order."""
    return _Search(problem, effort or default_effort(problem)).run_given_order()


class _Search:
    def __init__(self, problem: LayoutProblem, effort: Effort) -> None:
        self._problem = problem
        self._effort = effort
        self._sizes = ShardSizes(problem)
        self._lower = self._sizes.next_open(0)
        self._filler = Filler(problem)
        self._orders = sorted_orders(problem)
        self._excluded: set[int] = set()
        self._shard = self._sizes.next_open(problem.num_elements)
        first = place(problem, self._grid(self._shard), self._orders[0])
        assert first is not None, "one rank can hold everything"
        self._offsets = first

    def run(self) -> Layout:
        can_fill = self._filler.num_classes <= MAX_CLASSES
        self._try_orders(self._lower)
        if can_fill:
            self._climb(1, FIRST_CLIMBED)
        for unit in self._units():
            self._bisect(unit, self._try_orders)
        for width in WIDTHS if can_fill else ():
            self._climb(width, None if width == WIDTHS[-1] else CLIMBED)
            for unit in self._units():
                self._bisect(unit, partial(self._fill, width=width))
            if self._is_over:
                break
        self._try_given_order(self._shard)
        return self._layout()

    def run_given_order(self) -> Layout:
        self._try_given_order(self._lower)
        for unit in self._units():
            self._bisect(unit, self._try_given_order)
        return self._layout()

    @property
    def _is_over(self) -> bool:
        return self._lower >= self._shard or self._effort.is_spent

    def _layout(self) -> Layout:
        return Layout(offsets=self._offsets, shard_elements=self._shard, lower_bound_elements=self._lower)

    def _grid(self, shard: int) -> Grid:
        return Grid(self._problem, shard, (tensor.size[1] for tensor in self._problem.tensors))

    def _units(self) -> Iterator[int]:
        """Steps between shard sizes: common multiples of ever more atoms, and common divisors, coarse to fine."""
        alignment = self._problem.alignment_elements
        sizes = {tensor.size for tensor in self._problem.tensors}
        steps = {lcm(alignment, step) for step in (*self._sizes.divisors(), 1)}
        for atoms in (sorted({atom for _, atom in sizes}), [atom for _, atom in sorted(sizes, reverse=True)]):
            multiples = accumulate(atoms, lcm, initial=alignment)
            steps.update(takewhile(lambda step: step < self._shard, multiples))
        yield from sorted((step for step in steps if step < self._shard), reverse=True)

    def _bisect(self, unit: int, attempt: _Attempt) -> None:
        """Between bound and best, over multiples of `unit`: feasibility is not monotone, but nearly."""
        low, high = -(-self._lower // unit), (self._shard - 1) // unit
        while low <= high and not self._is_over:
            middle = (low + high) // 2
            if attempt(middle * unit):
                high = middle - 1
            else:
                low = middle + 1

    def _climb(self, width: int, most: int | None) -> None:
        """Open shard sizes from the bound on, until one does."""
        shard, num_tried = self._lower, 0
        while shard < self._shard and not self._effort.is_spent and (most is None or num_tried < most):
            num_tried += 1
            if self._fill(shard, width):
                return
            shard = self._sizes.next_open(shard + 1)

    def _try_given_order(self, shard: int) -> bool:
        if not self._is_open(shard):
            return False
        self._effort.left -= len(self._problem.tensors)
        return self._found(shard, place(self._problem, self._grid(shard), self._orders[0]))

    def _try_orders(self, shard: int) -> bool:
        if not self._is_open(shard):
            return False
        grid = self._grid(shard)
        for order in self._orders:
            self._effort.left -= len(order)
            if self._found(shard, place(self._problem, grid, order)):
                return True
        self._effort.left -= 2 * len(self._problem.tensors)
        return self._found(shard, place_with_gaps_filled(self._problem, grid))

    def _fill(self, shard: int, width: int) -> bool:
        if not self._is_open(shard):
            return False
        filling = self._filler.fill(shard, width=width, effort=self._effort)
        if filling.offsets is None and filling.is_exact:
            self._exclude(shard)
        return self._found(shard, filling.offsets)

    def _is_open(self, shard: int) -> bool:
        return shard not in self._excluded and self._sizes.next_open(shard) == shard

    def _exclude(self, shard: int) -> None:
        self._excluded.add(shard)
        while self._lower in self._excluded:
            self._lower = self._sizes.next_open(self._lower + 1)

    def _found(self, shard: int, offsets: Offsets | None) -> bool:
        if offsets is not None:
            self._shard, self._offsets = shard, offsets
        return offsets is not None
