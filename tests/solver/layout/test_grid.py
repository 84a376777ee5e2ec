"""Where a tensor may start, by hand."""

import pytest

from solver.layout.grid import Grid
from solver.layout.problem import LayoutProblem, Tensor


def grid(num_elements: int, atom: int, num_ranks: int, shard: int, shares: tuple[int, ...] = ()) -> Grid:
    tensor = Tensor(name="t", num_elements=num_elements, atom_elements=atom)
    return Grid(LayoutProblem(tensors=(tensor,), num_ranks=num_ranks, shares=shares), shard, (atom,))


@pytest.mark.parametrize(("shard", "fits"), [(5, True), (6, False), (7, False), (8, False), (9, False), (10, True)])
def test_what_fits_is_not_monotone(shard: int, fits: bool) -> None:
    """15 elements by fives on three ranks: shards of 6 to 9 would cut an atom, and are too small not to."""
    assert (grid(15, 5, 3, shard).earliest(0, 15, 5) == 0) is fits


@pytest.mark.parametrize(
    ("cursor", "start"),
    [
        (0, 0),  # up to 6, before the edge at 10
        (4, 4),  # ends on the edge
        (5, 7),  # one atom of 3 before the edge, the other after it
        (7, 7),
        (8, 10),  # no whole atom before the edge
        (14, 14),
        (15, -1),  # 15 + 6 is beyond the end
    ],
)
def test_starts_before_and_after_an_edge(cursor: int, start: int) -> None:
    assert grid(6, 3, 2, 10).earliest(cursor, 6, 3) == start


def test_two_edges_inside_need_an_atom_that_divides_the_shard() -> None:
    assert grid(9, 2, 4, 4).earliest(0, 9, 2) == 0
    assert grid(9, 2, 4, 4).earliest(1, 9, 2) == 2
    assert grid(9, 3, 4, 4).earliest(0, 9, 3) == -1


def test_ranks_that_differ() -> None:
    """Edges at 0, 3, 9, 12: the inner ones are 6 apart, which two, three and six divide and four does not."""
    assert grid(12, 3, 3, 3, (1, 2, 1)).earliest(0, 12, 3) == 0
    assert grid(7, 2, 3, 3, (1, 2, 1)).earliest(0, 7, 2) == 1
    assert grid(9, 2, 3, 3, (1, 2, 1)).earliest(0, 9, 2) == 1
    assert grid(9, 4, 3, 3, (1, 2, 1)).earliest(0, 9, 4) == -1
    assert grid(9, 6, 3, 3, (1, 2, 1)).earliest(0, 9, 6) == 3


def test_a_last_atom_may_be_partial() -> None:
    """Seven elements by threes cut after the first or the second three, never before the last one."""
    assert grid(7, 3, 2, 9).earliest(3, 7, 3) == 3
    assert grid(7, 3, 2, 9).earliest(6, 7, 3) == 6
    assert grid(7, 3, 2, 7).earliest(1, 7, 3) == 1
    assert grid(7, 3, 2, 7).earliest(2, 7, 3) == 4
