"""The caching allocators of torch: device memory in segments per stream, pinned host memory in powers of two.

[Note: device] `c10/cuda/CUDACachingAllocator.cpp` of torch 2.13 with default settings (no expandable segments, no
limit on splitting):

- Sizes are rounded up to 512 bytes.
- Each stream has its own pools, one for sizes up to 1 MiB and one for larger ones. A block never changes pool.
- A request takes the smallest free block of its pool that is large enough, of equal ones that with the lowest
  address. Addresses of segments are taken to rise in the order in which they were made.
- What is left over becomes a free block of its own if it has at least 512 bytes (small pool) or more than 1 MiB
  (large pool); otherwise it stays unused inside the block.
- Without a free block a segment is taken from the driver: 2 MiB for a small request, 20 MiB for one below 10 MiB,
  else the size rounded up to 2 MiB.
- A freed block merges with free neighbours of its segment.
- Segments are given back only when the device runs out of memory. That is not modelled: what a pool reserves never
  shrinks, and is what `torch.cuda.memory_reserved` shows on a device with room.

[Note: host] `ATen/core/CachingHostAllocator.h` of torch 2.13: pinned memory is taken and kept in powers of two, and
nothing is split or merged. A request takes a free block of its power of two.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass, field

KIB, MIB = 2**10, 2**20
MIN_BLOCK_BYTES = 512
SMALL_BYTES = MIB
"""Largest request of the small pool."""
SMALL_SEGMENT_BYTES = 2 * MIB
MIN_LARGE_BYTES = 10 * MIB
"""Requests from here on have segments of their own."""
LARGE_SEGMENT_BYTES = 20 * MIB
SEGMENT_STEP_BYTES = 2 * MIB


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment; neighbours are linked in the order of addresses."""

    segment: int
    offset: int
    size_bytes: int
    is_small: bool
    before: "Block | None" = None
    after: "Block | None" = None
    is_free: bool = False

    @property
    def key(self) -> tuple[int, int, int]:
        """Order of free blocks: size, then address."""
        return self.size_bytes, self.segment, self.offset


@dataclass(slots=True)
class _FreeBlocks:
    """Free blocks of one pool, the smallest first."""

    keys: list[tuple[int, int, int]] = field(default_factory=list)
    blocks: dict[tuple[int, int, int], Block] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        block.is_free = True
        insort(self.keys, block.key)
        self.blocks[block.key] = block

    def remove(self, block: Block) -> None:
        block.is_free = False
        del self.keys[bisect_left(self.keys, block.key)]
        del self.blocks[block.key]

    def take(self, size_bytes: int) -> Block | None:
        """The smallest that is large enough."""
        place = bisect_left(self.keys, (size_bytes, 0, 0))
        if place == len(self.keys):
            return None
        block = self.blocks[self.keys[place]]
        self.remove(block)
        return block


@dataclass(slots=True)
class DevicePool:
    """Device memory of one stream; see [Note: device]."""

    reserved_bytes: int = 0
    """Of all segments: what `torch.cuda.memory_reserved` counts."""
    allocated_bytes: int = 0
    """Of blocks in use, with what is left unused inside them."""
    _num_segments: int = 0
    _free: dict[bool, _FreeBlocks] = field(default_factory=lambda: {True: _FreeBlocks(), False: _FreeBlocks()})

    def allocate(self, size_bytes: int) -> Block:
        """A block of at least so many bytes, which must be positive."""
        assert size_bytes > 0, "nothing is allocated for an empty tensor"
        size = rounded_bytes(size_bytes)
        is_small = size <= SMALL_BYTES
        block = self._free[is_small].take(size) or self._new_segment(segment_bytes(size), is_small=is_small)
        left = block.size_bytes - size
        if left >= MIN_BLOCK_BYTES if is_small else left > SMALL_BYTES:
            self._split(block, size)
        self.allocated_bytes += block.size_bytes
        return block

    def free(self, block: Block) -> None:
        """Return a block, which merges with free neighbours."""
        self.allocated_bytes -= block.size_bytes
        free = self._free[block.is_small]
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free:
                free.remove(neighbour)
                _merge(block, neighbour)
        free.add(block)

    def _new_segment(self, size_bytes: int, *, is_small: bool) -> Block:
        self._num_segments += 1
        self.reserved_bytes += size_bytes
        return Block(segment=self._num_segments, offset=0, size_bytes=size_bytes, is_small=is_small)

    def _split(self, block: Block, size_bytes: int) -> None:
        rest = Block(
            segment=block.segment,
            offset=block.offset + size_bytes,
            size_bytes=block.size_bytes - size_bytes,
            is_small=block.is_small,
            before=block,
            after=block.after,
        )
        if block.after is not None:
            block.after.before = rest
        block.after, block.size_bytes = rest, size_bytes
        self._free[block.is_small].add(rest)


@dataclass(slots=True)
class PinnedPool:
    """Pinned host memory; see [Note: host]."""

    reserved_bytes: int = 0
    _free: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Number of free blocks of each size."""

    def allocate(self, size_bytes: int) -> int:
        """Size of the block that is taken; 0 for nothing."""
        size = pinned_bytes(size_bytes)
        if self._free[size]:
            self._free[size] -= 1
        else:
            self.reserved_bytes += size
        return size

    def free(self, block_bytes: int) -> None:
        """Return a block of the size that `allocate` gave."""
        if block_bytes:
            self._free[block_bytes] += 1


def rounded_bytes(size_bytes: int) -> int:
    """What a request takes of a segment."""
    return -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def segment_bytes(rounded: int) -> int:
    """Segment that the driver is asked for when no free block suits a rounded request."""
    if rounded <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES


def pinned_bytes(size_bytes: int) -> int:
    """Pinned memory for a request: the next power of two; 0 for nothing."""
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


def _merge(block: Block, neighbour: Block) -> None:
    """Let `block` take the place of both."""
    block.size_bytes += neighbour.size_bytes
    if neighbour is block.before:
        block.offset, block.before = neighbour.offset, neighbour.before
        if block.before is not None:
            block.before.after = block
    else:
        block.after = neighbour.after
        if block.after is not None:
            block.after.before = block
