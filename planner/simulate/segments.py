"""Device memory that the caching allocator holds for a program, which is more than what is allocated.

A program allocates buffers, which stand for many tensors; `Tensors` says how they are cut. A touch stands for
tensors of several categories. Where a buffer of one of these follows, the touch is a moment while that buffer is
filled, and makes its tensors; the rest, temporaries of a call, is cut into pieces of the largest tensor that the
call saves.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.program.events import Allocate, Event, Free, Operation, Program, Stream, Touch
from planner.schema import MemoryCategory
from planner.simulate.allocator import SMALL_BYTES, Block, DevicePool

_OPTIMIZER = MemoryCategory.OPTIMIZER


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """How bytes of a program are cut into tensors; whatever is missing is one tensor."""

    buffers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Sizes of the tensors of a buffer, which add up to its size."""
    largest: Mapping[str, int] = field(default_factory=dict)
    """Largest temporary tensor of a call, by its path, and of the moment `optimizer step`."""


def segments_of(program: Program, tensors: Tensors = Tensors(), *, num_steps: int = 2) -> dict[Stream, int]:
    """Bytes reserved by each pool that is used, after some optimizer steps.

    In the first step the optimizer has no state until the step itself; what later steps find in the pools is what
    earlier ones left there.

    Args:
        program: a micro-batch whose knobs are all fixed.
        tensors: how buffers are cut.
        num_steps: how often the micro-batch is run.
    """
    steps = _Steps(program=program, tensors=tensors)
    for number in range(num_steps):
        steps.run(is_first=number == 0)
    return {stream: pool.reserved_bytes for stream, pool in steps.pools.items() if pool.reserved_bytes}


@dataclass(slots=True, kw_only=True)
class _Steps:
    program: Program
    tensors: Tensors
    pools: dict[Stream, DevicePool] = field(default_factory=lambda: {stream: DevicePool() for stream in Stream})
    alive: dict[str, tuple[Allocate, list[Block]]] = field(default_factory=dict)
    touched: dict[MemoryCategory, list[Block]] = field(default_factory=dict)
    """Blocks of the last touch, and activations that were kept for the call whose backward comes next."""

    def run(self, *, is_first: bool) -> None:
        """One micro-batch and the optimizer step; persistent buffers stay for the next one."""
        events = [event for event in self.program.events if not event.when]
        persistent = _persistent(events)
        late = [event for event in persistent if is_first and event.category is _OPTIMIZER]
        for index, event in enumerate(events):
            match event:
                case Allocate() if event not in late:
                    self._allocate(event)
                case Free():
                    self._free(event.buffer)
                case Touch():
                    self._touch(event, *_what_follows(events, index))
                case Operation():
                    self._release(self.touched.pop(MemoryCategory.TRANSIENTS, []))
        for event in late:
            self._allocate(event)
        stay = {event.buffer for event in persistent}
        for name in [name for name in self.alive if name not in stay]:
            self._free(name)
        self._drop_touched()

    def _allocate(self, event: Allocate) -> None:
        if event.buffer in self.alive:
            return
        begun = self.touched.pop(event.category, []) if event.stream is Stream.COMPUTE else []
        self._drop_touched()
        self.alive[event.buffer] = event, self._fitted(event.stream, begun, self._sizes(event))

    def _free(self, name: str) -> None:
        kept = self.touched.pop(MemoryCategory.ACTIVATIONS, [])
        self._drop_touched()
        event, blocks = self.alive.pop(name, (None, []))
        if event is not None and event.category is MemoryCategory.ACTIVATIONS:
            self.touched[event.category] = kept + blocks
        else:
            self._release(kept)
            self._release(blocks, event.stream if event is not None else Stream.COMPUTE)

    def _touch(self, event: Touch, owner: str, filled: Sequence[Allocate]) -> None:
        for category, size in event.parts:
            sizes = [part for buffer in filled if buffer.category is category for part in self._sizes(buffer)]
            if sum(sizes) != size:
                sizes = _cut(size, self.tensors.largest.get(owner or event.moment, size))
            self.touched[category] = self._fitted(Stream.COMPUTE, self.touched.get(category, []), sizes)

    def _sizes(self, event: Allocate) -> Sequence[int]:
        sizes = [size for size in self.tensors.buffers.get(event.buffer, ()) if size]
        return sizes if sum(sizes) == event.size_bytes else [event.size_bytes]

    def _fitted(self, stream: Stream, blocks: list[Block], sizes: Sequence[int]) -> list[Block]:
        """Blocks for tensors of these sizes; those of the blocks at hand that suit the first of them stay."""
        kept = 0
        while kept < min(len(blocks), len(sizes)) and 0 <= blocks[kept].size_bytes - sizes[kept] <= SMALL_BYTES:
            kept += 1
        self._release(blocks[kept:], stream)
        return blocks[:kept] + [self.pools[stream].allocate(size) for size in sizes[kept:]]

    def _drop_touched(self) -> None:
        for blocks in self.touched.values():
            self._release(blocks)
        self.touched.clear()

    def _release(self, blocks: Iterable[Block], stream: Stream = Stream.COMPUTE) -> None:
        for block in blocks:
            self.pools[stream].free(block)


def _persistent(events: Iterable[Event]) -> list[Allocate]:
    """What is there before anything runs."""
    found = []
    for event in events:
        if not isinstance(event, Allocate):
            break
        found.append(event)
    return found


def _what_follows(events: Sequence[Event], index: int) -> tuple[str, list[Allocate]]:
    """Whose operation comes after an event, and the buffers that it fills."""
    owner, filled = "", []
    for place in range(index + 1, len(events)):
        match event := events[place]:
            case Operation():
                owner = owner or event.owner
            case Allocate() if event.stream is Stream.COMPUTE:
                filled.append(event)
            case _:
                break
    return owner, filled


def _cut(size_bytes: int, largest: int) -> list[int]:
    if not size_bytes:
        return []
    whole, rest = divmod(size_bytes, max(1, largest))
    return [largest] * whole + ([rest] if rest else [])
