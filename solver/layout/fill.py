"""Filling a buffer of a given shard size: which tensor comes next.

A partial layout is how many tensors of each class are placed and where the last one ends. Of those with the same
counts only the one that ends first matters, because starts never fall as the cursor grows. So layer after layer
(one more tensor each) keeps the best partial layout for each combination of counts, and only as long as it leaves
no more elements empty than the buffer may: that is exact. A layer with more than `width` entries keeps the most
promising.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solver.layout.grid import Grid
from solver.layout.problem import LayoutProblem

_Chain = tuple[int, int, "_Chain"] | None
"""The last class placed, its start, and what was placed before."""
_Partial = tuple[int, _Chain]
"""Cursor and how it came there."""


class Effort:
    """Placements that a search may still try; the same number gives the same answer everywhere."""

    __slots__ = ("left",)

    def __init__(self, placements: int) -> None:
        self.left = placements

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What a search for one shard size found."""

    offsets: tuple[int, ...] | None
    """Of the tensors of the problem; None when none was found."""
    is_exact: bool
    """Nothing was left out: None means that there is no layout."""


class Filler:
    """Classes of equal tensors of one problem."""

    def __init__(self, problem: LayoutProblem) -> None:
        self._problem = problem
        members: dict[tuple[int, int], list[int]] = {}
        for number, tensor in enumerate(problem.tensors):
            members.setdefault(tensor.size, []).append(number)
        self._members = dict(sorted(members.items(), reverse=True))
        self._sizes: Sequence[tuple[int, int]] = tuple(self._members)
        self._counts = tuple(len(numbers) for numbers in self._members.values())

    @property
    def num_classes(self) -> int:
        """Classes of equal tensors."""
        return len(self._sizes)

    def fill(self, shard_elements: int, *, width: int, effort: Effort) -> Filling:
        """Look for a layout with this shard size, keeping at most `width` partial layouts a layer.

        The effort may be overdrawn by one layer.
        """
        grid = Grid(self._problem, shard_elements, (atom for _, atom in self._sizes))
        spare = grid.num_elements - self._problem.num_elements
        if spare < 0:
            return Filling(offsets=None, is_exact=True)
        layer: dict[tuple[int, ...], _Partial] = {(0,) * len(self._sizes): (0, None)}
        is_exact = True
        for _ in range(len(self._problem.tensors)):
            if effort.is_spent:
                return Filling(offsets=None, is_exact=False)
            effort.left -= len(layer) * len(self._sizes)
            layer = self._next_layer(grid, spare, layer)
            if not layer:
                return Filling(offsets=None, is_exact=is_exact)
            if len(layer) > width:
                is_exact = False
                layer = self._promising(layer, width, spare, grid.num_elements)
        (_, chain), *_ = layer.values()
        return Filling(offsets=self._offsets(chain), is_exact=is_exact)

    def _next_layer(
        self, grid: Grid, spare: int, layer: dict[tuple[int, ...], _Partial]
    ) -> dict[tuple[int, ...], _Partial]:
        following: dict[tuple[int, ...], _Partial] = {}
        earliest = grid.earliest
        for counts, (cursor, chain) in layer.items():
            empty = cursor - self._placed(counts)
            for number, ((elements, atom), limit) in enumerate(zip(self._sizes, self._counts, strict=True)):
                count = counts[number]
                if count == limit:
                    continue
                start = earliest(cursor, elements, atom)
                if start < 0 or empty + start - cursor > spare:
                    continue
                key = (*counts[:number], count + 1, *counts[number + 1 :])
                known = following.get(key)
                if known is None or start + elements < known[0]:
                    following[key] = (start + elements, (number, start, chain))
        return following

    def _promising(
        self, layer: dict[tuple[int, ...], _Partial], width: int, spare: int, buffer: int
    ) -> dict[tuple[int, ...], _Partial]:
        """Least empty for what their place allows; among equals the further ones: small tensors fit later."""
        ranked = sorted(
            layer.items(),
            key=lambda item: (
                (item[1][0] - self._placed(item[0])) * buffer - spare * item[1][0],
                -item[1][0],
                item[0],
            ),
        )
        return dict(ranked[:width])

    def _placed(self, counts: Sequence[int]) -> int:
        return sum(count * size[0] for count, size in zip(counts, self._sizes, strict=True))

    def _offsets(self, chain: _Chain) -> tuple[int, ...]:
        waiting = [iter(numbers) for numbers in self._members.values()]
        offsets = [0] * len(self._problem.tensors)
        for number, start in reversed(list(_links(chain))):
            offsets[next(waiting[number])] = start
        return tuple(offsets)


def _links(chain: _Chain) -> Iterator[tuple[int, int]]:
    while chain is not None:
        number, start, chain = chain
        yield number, start
