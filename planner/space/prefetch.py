"""How far ahead units gather others: one depth for all of them, or in forward as deep as gathers fit a limit.

[Note: fitted depths]
In forward an earlier gather never delays anything (the Note of `planner.space.opened` says why), it only takes
memory. When unit k issues the gather of unit m, the pool of gathers holds those that are not copied out yet:

    A_k + A_(k+1) + .. + A_m + C_m

with A the gathers' buffers and C what is cast for one; A_k is gone where the CPU computes itself. Of all lists with
which that never exceeds a limit the longest are the fastest, so that one number stands for the depths of all units.
Without a list, and with lists of one unit, the pool holds max over k of A_k + A_(k+1) + C_(k+1), or what the root's
gather takes, and that is the least limit; larger ones are sums of three buffers. Of these the smallest and the
largest are tried. Units of one size are treated alike. The sums do not count copies of shards that come from the
host, nor the buffers that gathers in place leave behind: there a limit is only a guess, and what memory a plan
takes is counted by its program anyway.

In backward a deeper prefetch competes with reduce-scatters and can be slower: there all units have one depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.program.sizes import UnitBytes
from planner.program.step import PrefetchTargets
from planner.program.units import ROOT, Partition
from planner.schema import MeshPlan

FORWARD_DEPTHS = (0, 1, 2)
BACKWARD_DEPTHS = (0, 2)
"""Depths of explicit prefetch; 0 is what FSDP2 does by itself, which in backward is a depth of 1."""
DEEPEST = max(FORWARD_DEPTHS)


def prefetch_targets(parts: Partition, depth: int, *, ahead: bool) -> PrefetchTargets:
    """Per unit, the next `depth` units in the order of the pass; nothing at depth 0 (FSDP2's default).

    Units whose output requires no grad have no backward, so nothing gathers them there. The root has no list in
    backward: where it returns more than one tensor its hook runs again in the middle, and a list would gather units
    that are done.
    """
    if not depth:
        return ()
    order = [run.unit for run in parts.passes if ahead or parts.has_backward(run)]
    if not ahead:
        order.reverse()
    lists: list[tuple[int, ...]] = [()] * len(parts.units)
    lists[ROOT] = tuple(order[:depth]) if ahead else ()
    for position, unit in enumerate(order):
        lists[unit] = tuple(order[position + 1 : position + 1 + depth])
    return tuple(lists)


@dataclass(frozen=True, slots=True)
class GatherLimit:
    """What the pool of gathers may hold in forward."""

    number: int
    """Among those of a global choice, the least first."""
    size_bytes: int
    is_least: bool
    """Lists of one unit take as much."""


class ForwardPrefetch:
    """Prefetch in forward, all units to one depth or each as deep as the pool of gathers allows; see the Note."""

    def __init__(
        self, parts: Partition, meshes: Sequence[MeshPlan], sizes: Sequence[UnitBytes], *, keeps_last: bool
    ) -> None:
        """Take sizes.

        Args:
            parts: the units.
            meshes: of each.
            sizes: of each.
            keeps_last: the buffer of a gather is kept until the next copy-out.
        """
        self._parts = parts
        self._order = [ROOT, *(run.unit for run in parts.passes)]
        is_gathered = [mesh.shard > 1 for mesh in meshes]
        self._buffers = [size.gathered * flag for size, flag in zip(sizes, is_gathered, strict=True)]
        self._casts = [size.cast * flag for size, flag in zip(sizes, is_gathered, strict=True)]
        self._keeps_last = keeps_last
        self.is_sharded = any(is_gathered)
        """Some unit is gathered at all."""
        self.deepest = len(parts.passes) - 1
        """So many units run after the first."""

    def limits(self) -> tuple[GatherLimit, ...]:
        """Limits with which not all units have the same depth, ascending."""
        places = range(len(self._order))
        least = max(self._buffers[ROOT] + self._casts[ROOT], *(self._held_bytes(place, 1) for place in places[:-1]))
        deeper = {max(least, self._held_bytes(place, DEEPEST)) for place in places[:-DEEPEST]}
        mixed = sorted(deeper)[:-1]  # the largest has room for all
        tried = dict.fromkeys((*mixed[:1], *mixed[-1:]))
        return tuple(GatherLimit(number, size, size == least) for number, size in enumerate(tried))

    def targets(self, depth: int, limit: GatherLimit | None = None) -> PrefetchTargets:
        """Per unit, the next `depth` units; within a limit the next one, or two where the pool has room."""
        if limit is None:
            return prefetch_targets(self._parts, depth, ahead=True)
        lists: list[tuple[int, ...]] = [()] * len(self._parts.units)
        for place, unit in enumerate(self._order):
            is_last = place + DEEPEST >= len(self._order)
            fits = is_last or self._held_bytes(place, DEEPEST) <= limit.size_bytes
            lists[unit] = tuple(self._order[place + 1 : place + 1 + (DEEPEST if fits else 1)])
        return tuple(lists)

    def _held_bytes(self, place: int, ahead: int) -> int:
        """What the pool holds when a unit issues the gather of the one so far ahead."""
        pending = self._order[place + 1 : place + 1 + ahead]
        held = sum(self._buffers[unit] for unit in pending) + self._casts[pending[-1]]
        return held + self._buffers[self._order[place]] * self._keeps_last
