"""A run of a flattened tensor as boxes of the tensor, in which distributed checkpoints are written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box of a tensor whose elements are one run of the flattened tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int
    """First element of the run."""


def boxes(shape: Sequence[int], start: int, end: int) -> Iterator[Box]:
    """Cut elements `start .. end - 1` of the flattened tensor into boxes, in order.

    At most `2 * len(shape) - 1`: the rest of a row, whole rows, and the start of a row, in each dimension.
    """
    yield from _boxes(tuple(shape), start, end, 0)


def _boxes(shape: tuple[int, ...], start: int, end: int, base: int) -> Iterator[Box]:
    if start >= end:
        return
    row = prod(shape[1:])
    first, last = -(-start // row), end // row
    if first <= last:
        yield from _in_row(shape, start, first * row, base)
        if first < last:
            offsets = (first, *(0 for _ in shape[1:]))
            yield Box(offsets=offsets, sizes=(last - first, *shape[1:]), start=base + first * row)
        yield from _in_row(shape, last * row, end, base)
    else:
        yield from _in_row(shape, start, end, base)


def _in_row(shape: tuple[int, ...], start: int, end: int, base: int) -> Iterator[Box]:
    if start >= end:
        return
    row = prod(shape[1:])
    index = start // row
    for box in _boxes(shape[1:], start - index * row, end - index * row, base + index * row):
        yield Box(offsets=(index, *box.offsets), sizes=(1, *box.sizes), start=box.start)
