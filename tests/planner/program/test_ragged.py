"""What the fullest rank holds of ragged buffers."""

from collections import Counter
from random import Random

import pytest

from planner.program.pieces import is_cut, pieces
from planner.program.ragged import elements_on_fullest
from planner.schema import DType, Layout, LayoutEntry


def drawn(rng: Random) -> tuple[Layout, int]:
    """A layout with gaps, empty parameters and ranks that hold nothing; and its number of ranks."""
    end, entries = 0, []
    for number in range(rng.randint(1, 6)):
        start = end + rng.choice((0, 0, 0, rng.randint(0, 8)))
        size = rng.choice((0, rng.randint(1, 6), rng.randint(1, 50)))
        entries.append(LayoutEntry(parameter=f"w{number}", offset_elements=start, num_elements=size))
        end = start + size
    shard = rng.randint(1, 12)
    rng.shuffle(entries)
    layout = Layout(name="all", dtype=DType.FLOAT32, shard_elements=shard, entries=tuple(entries))
    return layout, max(1, -(-end // shard)) + rng.choice((0, 0, 1, 3))


@pytest.mark.parametrize("block", range(4))
def test_the_fullest_rank_is_the_first_that_holds_most(block: int) -> None:
    for seed in range(500 * block, 500 * (block + 1)):
        layout, num_ranks = drawn(Random(seed))
        cut = list(pieces(layout))
        held = [sum(piece.num_elements for piece in cut if piece.rank == rank) for rank in range(num_ranks)]
        there = {piece.parameter: piece.num_elements for piece in cut if piece.rank == held.index(max(held))}
        expected = {entry.parameter: there.get(entry.parameter, 0) for entry in layout.entries}
        assert elements_on_fullest(layout, num_ranks) == expected, seed
        num_pieces = Counter(piece.parameter for piece in cut)
        assert all(is_cut(layout, entry) is (num_pieces[entry.parameter] > 1) for entry in layout.entries), seed
