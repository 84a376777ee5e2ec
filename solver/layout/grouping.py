"""How equal tensors are spread over buffers, and ways to change that."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import NamedTuple


class Group(NamedTuple):
    """Some tensors of a family of equal ones, in one buffer with one atom."""

    family: int
    buffer: int
    atom: int
    num_tensors: int


Grouping = tuple[Group, ...]
"""Sorted, with at most one group for a family, a buffer and an atom."""
Members = tuple[tuple[int, int, int], ...]
"""Family, atom and count of each group of one buffer."""


def grouping(groups: Iterable[Group]) -> Grouping:
    """Groups put in order, those of one family, buffer and atom put together."""
    counts: dict[tuple[int, int, int], int] = {}
    for family, buffer, atom, count in groups:
        counts[family, buffer, atom] = counts.get((family, buffer, atom), 0) + count
    return tuple(Group(*key, count) for key, count in sorted(counts.items()))


def members_by_buffer(groups: Grouping) -> dict[int, Members]:
    """What each buffer holds."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for group in groups:
        found.setdefault(group.buffer, []).append((group.family, group.atom, group.num_tensors))
    return {buffer: tuple(members) for buffer, members in found.items()}


def targets(groups: Grouping, max_buffers: int) -> list[int]:
    """Buffers that something may be moved to: those in use, and one more where that is allowed."""
    used = sorted({group.buffer for group in groups})
    if len(used) == max_buffers:
        return used
    return [*used, next(number for number in range(max_buffers) if number not in used)]


def moves(groups: Grouping, atoms: Sequence[Sequence[int]], max_buffers: int) -> Iterator[Grouping]:
    """One group in another buffer or with another of its family's atoms."""
    for group in groups:
        for target in targets(groups, max_buffers):
            if target != group.buffer:
                yield changed(groups, {group: (group._replace(buffer=target),)})
        for atom in atoms[group.family]:
            if atom != group.atom:
                yield changed(groups, {group: (group._replace(atom=atom),)})


def exchanges(groups: Grouping) -> Iterator[Grouping]:
    """Two groups in each other's buffer."""
    for one, other in combinations(groups, 2):
        if one.buffer != other.buffer:
            exchanged = one._replace(buffer=other.buffer), other._replace(buffer=one.buffer)
            yield changed(groups, {one: exchanged[:1], other: exchanged[1:]})


def divided(groups: Grouping, group: Group, target: int, count: int) -> Grouping:
    """Some tensors of a group in another buffer."""
    rest = group._replace(num_tensors=group.num_tensors - count)
    return changed(groups, {group: (rest, group._replace(buffer=target, num_tensors=count))})


def kicked(
    groups: Grouping, atoms: Sequence[Sequence[int]], max_buffers: int, random: Random, *, num_groups: int
) -> Grouping:
    """Some groups in other buffers and with other atoms, drawn at random."""
    drawn = random.sample(groups, min(num_groups, len(groups)))
    return changed(
        groups,
        {
            group: (group._replace(buffer=random.randrange(max_buffers), atom=random.choice(atoms[group.family])),)
            for group in drawn
        },
    )


def changed(groups: Grouping, changes: Mapping[Group, Sequence[Group]]) -> Grouping:
    """Some groups replaced by others."""
    return grouping(new for group in groups for new in changes.get(group, (group,)))
