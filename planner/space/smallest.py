"""Smallest sets of things for which something holds."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def smallest(entries: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> list[T]:
    """A set of entries for which it holds, and without any one of them does not.

    Args:
        entries: for all of which it holds; what comes first is left out first.
        holds: also for a set with more entries, where it does for one with fewer. Asked about once for each entry.
    """
    left = list(enumerate(entries))
    for entry in tuple(left):
        others = [other for other in left if other is not entry]
        if holds([one for _, one in others]):
            left = others
    return [one for _, one in left]
