"""Allocated bytes at every point of a program: peaks of pools, peak of their sum, what it is made of."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from planner.program.events import Allocate, Free, Program, Stream, Touch
from planner.schema import MemoryCategory
from planner.simulate.decided import Holds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """Allocated bytes by category right after one allocation."""

    moment: str
    event: int
    by_category_bytes: dict[MemoryCategory, int]
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The worst moments of a micro-batch and of the optimizer step that follows it."""

    pools_bytes: dict[Stream, int]
    """Of every pool that was used."""
    total_bytes: int
    """Of all pools together."""
    event: int
    """Index of the allocation that reached it."""
    micro_batch_bytes: int
    """Of all pools together in forward and backward."""
    optimizer_bytes: int
    """Of all pools together at the optimizer step, the touch that ends the last micro-batch; 0 for others."""


def peaks_of(program: Program, holds: Holds) -> Peaks:
    """Peaks alone, in one pass."""
    alive: dict[str, Allocate] = {}
    pools = dict.fromkeys(Stream, 0)
    peaks: dict[Stream, int] = {}
    total = best = best_event = micro_batch = optimizer = 0
    last = len(program.events) - 1 if _ends_with_optimizer(program) else None
    for index, event in enumerate(program.events):
        if isinstance(event, Free):
            if not event.when or holds(event.when):
                freed = alive.pop(event.buffer, None)
                if freed is not None:
                    total -= freed.size_bytes
                    pools[freed.stream] -= freed.size_bytes
            continue
        if isinstance(event, Allocate):
            if event.when and not holds(event.when):
                continue
            stream, size = event.stream, event.size_bytes
            assert event.buffer not in alive, f"{event.buffer} is alive already"
            alive[event.buffer] = event
            total += size
            highest, in_pool = total, pools[stream] + size
            pools[stream] = in_pool
        elif isinstance(event, Touch):
            if event.when and not holds(event.when):
                continue
            stream, highest, in_pool = Stream.COMPUTE, total, pools[Stream.COMPUTE]
            for _, size in event.parts:
                highest += size
                in_pool += size
        else:
            continue
        if in_pool > peaks.get(stream, 0):
            peaks[stream] = in_pool
        if index == last:
            micro_batch, optimizer = best, highest
        if highest > best:
            best, best_event = highest, index
    return Peaks(
        pools_bytes=peaks,
        total_bytes=best,
        event=best_event,
        micro_batch_bytes=best if last is None else micro_batch,
        optimizer_bytes=optimizer,
    )


def _ends_with_optimizer(program: Program) -> bool:
    final = program.events[-1] if program.events else None
    return isinstance(final, Touch) and any(category is MemoryCategory.OPTIMIZER for category, _ in final.parts)


def points_of(program: Program, holds: Holds, *, until: int | None = None) -> Iterator[MemoryPoint]:
    """Memory at every allocation point, in issue order, or at the one of event `until` alone."""
    alive: dict[str, Allocate] = {}
    categories: dict[MemoryCategory, int] = defaultdict(int)
    for index, event in enumerate(program.events):
        if not isinstance(event, Allocate | Free | Touch) or (event.when and not holds(event.when)):
            continue
        if isinstance(event, Free):
            freed = alive.pop(event.buffer, None)
            if freed is not None:
                categories[freed.category] -= freed.size_bytes
            continue
        if isinstance(event, Allocate):
            alive[event.buffer] = event
            categories[event.category] += event.size_bytes
        if until is None or index == until:
            yield _point(index, event, categories)
        if index == until:
            return


def _point(index: int, event: Allocate | Touch, categories: dict[MemoryCategory, int]) -> MemoryPoint:
    sizes = {category: size for category, size in categories.items() if size}
    for category, size in event.parts if isinstance(event, Touch) else ():
        if size:
            sizes[category] = sizes.get(category, 0) + size
    return MemoryPoint(moment=event.moment, event=index, by_category_bytes=sizes, total_bytes=sum(sizes.values()))
