"""The caching allocators by hand, and laws that hold for every sequence of requests."""

import random
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.simulate.allocator import (
    KIB,
    LARGE_SEGMENT_BYTES,
    MIB,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    SEGMENT_STEP_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    Block,
    DevicePool,
    PinnedPool,
    pinned_bytes,
    rounded_bytes,
    segment_bytes,
)


@pytest.mark.parametrize(("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)])
def test_sizes_are_rounded_to_512_bytes(size, rounded):
    assert rounded_bytes(size) == rounded


@pytest.mark.parametrize(
    ("rounded", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
        (25 * MIB, 26 * MIB),
    ],
)
def test_segments_come_in_three_sizes(rounded, segment):
    assert segment_bytes(rounded) == segment


def test_the_numbers_are_those_of_torch():
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    header = (Path(found.origin).parent / "include" / "c10" / "core" / "AllocatorConfig.h").read_text()
    constants = {name: int(value) for name, value in re.findall(r"constexpr size_t (k\w+) = (\d+);", header)}
    assert constants == {
        "kMinBlockSize": MIN_BLOCK_BYTES,
        "kSmallSize": SMALL_BYTES,
        "kSmallBuffer": SMALL_SEGMENT_BYTES,
        "kMinLargeAlloc": MIN_LARGE_BYTES,
        "kRoundLarge": SEGMENT_STEP_BYTES,
    }
    assert f"large_segment_size_{{{LARGE_SEGMENT_BYTES}}}" in header


def test_small_requests_share_a_segment():
    pool = DevicePool()
    blocks = [pool.allocate(600) for _ in range(2 * MIB // 1024)]
    assert (pool.reserved_bytes, pool.allocated_bytes) == (2 * MIB, 2 * MIB)
    assert [block.offset for block in blocks] == list(range(0, 2 * MIB, 1024))
    pool.allocate(1)
    assert pool.reserved_bytes == 4 * MIB


def test_a_large_request_never_takes_from_the_small_pool():
    pool = DevicePool()
    pool.free(pool.allocate(MIB))
    assert pool.reserved_bytes == 2 * MIB
    pool.allocate(MIB + 1)
    assert pool.reserved_bytes == 22 * MIB


def test_middling_requests_are_cut_from_twenty_mebibytes():
    pool = DevicePool()
    first, second = pool.allocate(6 * MIB), pool.allocate(6 * MIB)
    assert (first.segment, first.offset, second.segment, second.offset) == (1, 0, 1, 6 * MIB)
    # 8 MiB are left: enough for 7, of which 1 MiB is no block of its own, and not for two of 4.5.
    third = pool.allocate(7 * MIB)
    assert (third.offset, third.size_bytes, pool.allocated_bytes) == (12 * MIB, 8 * MIB, 20 * MIB)
    assert pool.reserved_bytes == 20 * MIB
    pool.allocate(2 * MIB)
    assert pool.reserved_bytes == 40 * MIB


def test_a_remainder_above_a_mebibyte_is_split_off():
    pool = DevicePool()
    pool.free(pool.allocate(20 * MIB))
    exact = pool.allocate(19 * MIB)
    assert exact.size_bytes == 20 * MIB
    pool.free(exact)
    assert pool.allocate(19 * MIB - 512).size_bytes == 19 * MIB - 512


def test_the_smallest_block_that_fits_is_taken_and_of_equal_ones_the_first():
    pool = DevicePool()
    blocks = [pool.allocate(size * MIB) for size in (40, 20, 30, 20)]
    for block in reversed(blocks):
        pool.free(block)
    assert pool.allocate(18 * MIB).segment == 2
    assert pool.allocate(20 * MIB).segment == 4
    assert pool.allocate(21 * MIB).segment == 3
    assert pool.reserved_bytes == 110 * MIB


def test_neighbours_merge_when_they_are_freed():
    pool = DevicePool()
    first, second, third = (pool.allocate(4 * MIB) for _ in range(3))
    pool.free(first)
    pool.free(third)
    # 4 MiB at the front; 4 and the 8 that were left behind it.
    assert pool.allocate(10 * MIB).offset == 8 * MIB
    pool.free(second)
    assert pool.allocate(8 * MIB).offset == 0
    assert pool.reserved_bytes == 20 * MIB


def test_segments_do_not_merge():
    # Ten gibibytes are free in two segments, and a tensor of six still needs its own.
    pool = DevicePool()
    for block in [pool.allocate(5 * KIB * MIB), pool.allocate(5 * KIB * MIB)]:
        pool.free(block)
    pool.allocate(6 * KIB * MIB)
    assert pool.reserved_bytes == 16 * KIB * MIB


@pytest.mark.parametrize(("size", "block"), [(0, 0), (1, 1), (2, 2), (3, 4), (4096, 4096), (4097, 8192)])
def test_pinned_memory_comes_in_powers_of_two(size, block):
    assert pinned_bytes(size) == block


def test_pinned_blocks_serve_their_own_size_only():
    pool = PinnedPool()
    block = pool.allocate(3_000)
    assert (block, pool.reserved_bytes) == (4_096, 4_096)
    pool.free(block)
    pool.allocate(2_048)
    assert pool.reserved_bytes == 6_144
    assert pool.allocate(2_049) == 4_096
    assert pool.reserved_bytes == 6_144
    pool.free(pool.allocate(0))
    assert pool.reserved_bytes == 6_144


SIZES = st.one_of(st.integers(1, 4 * KIB), st.integers(1, 3 * MIB), st.integers(1, 64 * MIB))


@given(sizes=st.lists(SIZES, min_size=1, max_size=60), seed=st.integers(0, 2**16))
@settings(max_examples=150, deadline=None)
def test_blocks_are_disjoint_and_segments_are_never_given_back(sizes, seed):
    rng = random.Random(seed)
    pool, alive, reserved = DevicePool(), [], 0
    for size in sizes:
        while alive and rng.random() < 0.45:
            pool.free(alive.pop(rng.randrange(len(alive)))[1])
        alive.append((size, pool.allocate(size)))
        _require_disjoint([block for _, block in alive])
        assert all(block.size_bytes >= rounded_bytes(size) for size, block in alive)
        assert pool.allocated_bytes == sum(block.size_bytes for _, block in alive)
        assert pool.reserved_bytes >= max(reserved, pool.allocated_bytes)
        reserved = pool.reserved_bytes
    for _, block in alive:
        pool.free(block)
    assert (pool.allocated_bytes, pool.reserved_bytes) == (0, reserved)
    # Everything has merged to whole segments.
    segments = [block for free in pool._free.values() for block in free.blocks.values()]
    assert sum(segment.size_bytes for segment in segments) == reserved
    assert all(segment.offset == 0 and segment.before is segment.after is None for segment in segments)


@given(st.lists(st.integers(5, 100), min_size=1, max_size=20))
def test_nothing_is_lost_on_large_multiples_that_are_never_freed(multiples):
    pool = DevicePool()
    for multiple in multiples:
        pool.allocate(multiple * 2 * MIB)
    assert pool.reserved_bytes == pool.allocated_bytes == 2 * MIB * sum(multiples)


def _require_disjoint(blocks: list[Block]) -> None:
    ends: dict[int, int] = {}
    for block in sorted(blocks, key=lambda block: (block.segment, block.offset)):
        assert block.offset >= ends.get(block.segment, 0)
        ends[block.segment] = block.offset + block.size_bytes
