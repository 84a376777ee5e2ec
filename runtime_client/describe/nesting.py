"""Lays the calls of a run in which some modules are split into the calls of one in which they are not."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime_client.describe.calls import CallTrace
from runtime_client.describe.errors import DifferentTraces
from runtime_client.describe.storages import Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Nesting:
    """Inner calls are those of the run with splits, outer ones those of the other.

    Attributes:
        outer: for each inner call, the outer one that it is or is a part of.
        inner: for each outer call, its inner ones; none where the run skipped it.
        num_made_before: for each inner call, how many storages earlier inner calls of its outer call made.
    """

    outer: tuple[int, ...]
    inner: tuple[range, ...]
    num_made_before: tuple[int, ...]

    def lifted(self, label: Label) -> Label:
        """The label that the storage has in the other run."""
        call, number = label
        return (self.outer[call], number if number < 0 else self.num_made_before[call] + number)


def nest(outer_paths: Sequence[str], split: frozenset[str], calls: Sequence[CallTrace]) -> Nesting:
    """Lay calls into those at `outer_paths`, of which the ones at `split` are made of several or skipped.

    Raises:
        DifferentTraces: they do not fit.
    """
    inner: list[range] = []
    outer: list[int] = []
    for index, path in enumerate(outer_paths):
        end = len(outer)
        if path in split:
            turn = calls[end].turns.get(path) if end < len(calls) else None
            while turn is not None and end < len(calls) and calls[end].turns.get(path) == turn:
                end += 1
        elif end < len(calls) and calls[end].path == path:
            end += 1
        else:
            raise _different(path)
        inner.append(range(len(outer), end))
        outer += [index] * (end - len(outer))
    if len(outer) != len(calls):
        raise _different(calls[len(outer)].path)
    return Nesting(outer=tuple(outer), inner=tuple(inner), num_made_before=tuple(_num_made_before(calls, inner)))


def _num_made_before(calls: Sequence[CallTrace], inner: Sequence[range]) -> list[int]:
    counts: list[int] = []
    for run in inner:
        made = 0
        for index in run:
            counts.append(made)
            made += calls[index].num_allocated
    return counts


def _different(path: str) -> DifferentTraces:
    return DifferentTraces(
        f"around module {path!r} the model makes other calls when its blocks are looked into: its forward must not "
        "depend on the class of their children"
    )
