"""What each rank holds of a planned buffer."""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.schema import Layout, LayoutEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive elements of one parameter on one rank."""

    parameter: str
    rank: int
    num_elements: int


def pieces(layout: Layout) -> Iterator[Piece]:
    """All pieces, from the front of the buffer to its end."""
    shard = layout.shard_elements
    for entry in sorted(layout.entries, key=lambda entry: entry.offset_elements):
        start, end = entry.offset_elements, entry.offset_elements + entry.num_elements
        while start < end:
            rank = start // shard
            stop = min(end, (rank + 1) * shard)
            yield Piece(parameter=entry.parameter, rank=rank, num_elements=stop - start)
            start = stop


def is_cut(layout: Layout, entry: LayoutEntry) -> bool:
    """Whether more than one rank holds elements of a parameter."""
    first, last = entry.offset_elements, entry.offset_elements + entry.num_elements - 1
    return first // layout.shard_elements < last // layout.shard_elements
