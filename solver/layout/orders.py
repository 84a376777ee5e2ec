"""Orders that are tried on large buffers: a few sorts, and the largest first with small tensors in the gaps."""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from solver.layout.grid import Grid
from solver.layout.problem import LayoutProblem, Tensor

Offsets = tuple[int, ...]
"""First element of each tensor of the problem."""


def sorted_orders(problem: LayoutProblem) -> tuple[tuple[int, ...], ...]:
    """The given order, then by atom and by size, falling and rising, without repetitions."""
    numbers = range(len(problem.tensors))
    keys: tuple[Callable[[Tensor], tuple[int, int]], ...] = (
        lambda tensor: (tensor.size[1], tensor.num_elements),
        lambda tensor: (tensor.num_elements, tensor.size[1]),
    )
    orders = [tuple(numbers)]
    for key in keys:
        rising = tuple(sorted(numbers, key=lambda number, key=key: key(problem.tensors[number])))  # type: ignore[misc]
        orders += [rising[::-1], rising]
    return tuple(dict.fromkeys(orders))


def place(problem: LayoutProblem, grid: Grid, order: Sequence[int]) -> Offsets | None:
    """Offsets of the tensors placed in this order, each as early as it goes; None when they do not fit."""
    starts = grid.starts(problem.tensors[number].size for number in order)
    if starts is None:
        return None
    offsets = [0] * len(order)
    for number, start in zip(order, starts, strict=True):
        offsets[number] = start
    return tuple(offsets)


def place_with_gaps_filled(problem: LayoutProblem, grid: Grid) -> Offsets | None:
    """The largest tensor next; what it would leave empty before it takes the largest tensors that fit there."""
    waiting = sorted(range(len(problem.tensors)), key=lambda number: (problem.tensors[number].size, -number))
    elements = [problem.tensors[number].num_elements for number in waiting]
    offsets = [0] * len(waiting)
    cursor = 0
    while waiting:
        start = grid.earliest(cursor, *problem.tensors[waiting[-1]].size)
        if start < 0:
            return None
        index = bisect_right(elements, start - cursor, hi=len(elements) - 1) - 1 if start > cursor else -1
        while index >= 0:
            begin = grid.earliest(cursor, *problem.tensors[waiting[index]].size)
            if begin >= 0 and begin + elements[index] <= start:
                break
            index -= 1
        if index >= 0:
            start = begin
        number = waiting.pop(index)
        offsets[number] = start
        cursor = start + elements.pop(index)
    return tuple(offsets)
