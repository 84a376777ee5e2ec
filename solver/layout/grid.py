"""Placing tensors one after the other in a buffer of a given shard size."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from solver.layout.problem import LayoutProblem


class Grid:
    """The edges of a buffer for one shard size, and where a tensor may start.

    A tensor whose first inner edge is B_k must reach it by whole atoms, so that its start is B_k modulo the atom;
    it may go on up to the first edge that is not congruent to B_k, which for equal ranks is B_{k+1} unless the
    atom divides S.
    """

    __slots__ = ("_edges", "_ends", "_last", "_num_ranks", "_shard", "_to_the_end", "_to_the_next")

    def __init__(self, problem: LayoutProblem, shard_elements: int, atoms: Iterable[int]) -> None:
        self._edges: Sequence[int] = problem.edges(shard_elements)
        self._num_ranks = problem.num_ranks
        self._last = self._edges[-1]
        self._shard = 0 if problem.shares else shard_elements
        """0 for ranks that differ."""
        self._to_the_next = (*self._edges[1:], 0)
        self._to_the_end = (self._last,) * len(self._edges)
        self._ends = {atom: self._ends_of(atom) for atom in set(atoms)}

    @property
    def num_elements(self) -> int:
        """Elements of the buffer."""
        return self._last

    def earliest(self, cursor: int, num_elements: int, atom: int) -> int:
        """Least valid start at or after `cursor` (which lies in the buffer); -1 when there is none.

        It never falls as the cursor grows, so placing tensors of a fixed order one by one, each as early as it
        goes, finds a layout whenever one exists.
        """
        if cursor + num_elements > self._last:
            return -1
        edges = self._edges
        rank = cursor // self._shard if self._shard else bisect_right(edges, cursor) - 1
        ends = self._ends[atom]
        for rank in range(rank, self._num_ranks):  # noqa: B020 - goes on from where the cursor is
            edge = edges[rank + 1]
            if cursor + num_elements <= edge:
                return cursor
            start = cursor + (edge - cursor) % atom
            if start + num_elements <= ends[rank + 1]:
                return start
            cursor = edge
        return -1

    def starts(self, sizes: Iterable[tuple[int, int]]) -> list[int] | None:
        """Starts of tensors `(elements, atom)` in their order; None when they do not fit."""
        cursor = 0
        found = []
        for num_elements, atom in sizes:
            start = self.earliest(cursor, num_elements, atom)
            if start < 0:
                return None
            found.append(start)
            cursor = start + num_elements
        return found

    def _ends_of(self, atom: int) -> Sequence[int]:
        """For each edge, how far a tensor may go whose first inner edge it is."""
        if self._shard:
            return self._to_the_end if self._shard % atom == 0 else self._to_the_next
        edges = self._edges
        ends = list(self._to_the_next)
        for index in range(len(edges) - 3, -1, -1):
            if (edges[index + 1] - edges[index]) % atom == 0:
                ends[index] = ends[index + 1]
        return ends
