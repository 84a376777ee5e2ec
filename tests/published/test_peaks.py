"""Forward and backward peaks of FSDP2 as functions of the depth of prefetch."""

import pytest

from planner.program.events import Phase
from planner.schema import MemoryCategory, RuntimeKnobs
from planner.simulate import predict
from tests.published.steps import BLOCK_BYTES, Step, block_model, step

NUM_BLOCKS = 8
RANKS = 4
UNSHARDED, GATHERED = MemoryCategory.UNSHARDED_PARAMETERS, MemoryCategory.GATHER_BUFFERS
GRADIENTS, REDUCED = MemoryCategory.UNSHARDED_GRADIENTS, MemoryCategory.REDUCE_BUFFERS
U = A = G = R = BLOCK_BYTES
ROOT = BLOCK_BYTES


def at_depth(prefetch: int, buffers: int = 1) -> Step:
    runtime = RuntimeKnobs(reduce_scatter_max_input_buffers=buffers)
    return step(block_model(NUM_BLOCKS), RANKS, prefetch=prefetch, runtime=runtime)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_forward_peak(n: int) -> None:
    """U + max(2, n + 1) A above the root, n the depth of explicit prefetch and 0 the implicit one (docs/fsdp2.md).

    Gather outputs have a pool of their own, so the two terms are peaks of two pools.
    """
    found = at_depth(n)
    assert found.most(Phase.FORWARD, UNSHARDED) == ROOT + U
    assert found.most(Phase.FORWARD, GATHERED) == max(2, n + 1) * A


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_forward_peak_at_one_moment(n: int) -> None:
    """U + max(2, n + 1) A are alive at once: a gather output is let go when the next `wait_for_unshard` returns.

    `wait_for_unshard` holds the output before in a local variable while it copies out its own (torch 2.13,
    `_fsdp_param_group.py`; measured in docs/fsdp2.md).
    """
    assert at_depth(n).most(Phase.FORWARD, UNSHARDED, GATHERED) == ROOT + U + max(2, n + 1) * A


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_backward_peak(n: int, buffers: int) -> None:
    """U + max(1, n) A + G + K R above the root, K retained reduce-scatter inputs (docs/fsdp2.md)."""
    found = at_depth(n, buffers)
    assert found.most(Phase.BACKWARD, GATHERED) == max(1, n) * A
    assert found.most(Phase.BACKWARD, UNSHARDED, GRADIENTS, REDUCED) == ROOT + U + G + buffers * R


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_peaks_of_the_pools(n: int) -> None:
    """Both peaks in the predicted pools: what an allocator with one pool for each stream reserves."""
    found = at_depth(n)
    model_bytes = (NUM_BLOCKS + 1) * BLOCK_BYTES
    state = 3 * model_bytes // RANKS  # shards and two moments
    pools = predict(found.request, found.decisions).peak.pools_bytes
    assert pools["copy_in"] == max(2, n + 1) * A
    assert pools["reduce"] == model_bytes // RANKS
    assert pools["compute"] == state + max(ROOT + U + G + R, model_bytes // RANKS)


def test_implicit_prefetch_costs_what_depth_1_costs() -> None:
    """n = 1 reserves what implicit prefetch reserves, in both directions (docs/fsdp2.md)."""
    implicit, explicit = (predict(one.request, one.decisions).peak for one in (at_depth(0), at_depth(1)))
    assert implicit.pools_bytes == explicit.pools_bytes


@pytest.mark.parametrize(("n", "in_forward", "in_backward"), [(0, 1, 2), (1, 2, 2), (2, 3, 3), (3, 4, 4)])
def test_blocks_that_are_gathered_at_once(n: int, in_forward: int, in_backward: int) -> None:
    """1, 2, 3, 4 blocks in forward and 2, 2, 3, 4 in backward for depths 0 to 3 (docs/fsdp2.md).

    While a block runs: in forward the deferred gather output of the block itself is no further block.
    """
    found = at_depth(n)
    live = {
        phase: [
            (point.by_category_bytes.get(UNSHARDED, 0) + point.by_category_bytes.get(GATHERED, 0) - ROOT)
            // BLOCK_BYTES
            for point in found.points[phase]
            if point.moment.startswith(f"{phase.value} of layers.")
        ]
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    }
    assert len(live[Phase.FORWARD]) == NUM_BLOCKS
    assert max(live[Phase.FORWARD]) - 1 == in_forward
    assert max(live[Phase.BACKWARD]) == in_backward


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_sharded_gradients_add_up_over_the_units(n: int) -> None:
    """Gradients already reduced come on top, unit by unit (docs/fsdp2.md)."""
    found = at_depth(n)
    sizes = [point.by_category_bytes.get(MemoryCategory.GRADIENTS, 0) for point in found.points[Phase.BACKWARD]]
    assert sorted(set(sizes)) == [units * BLOCK_BYTES // RANKS for units in range(NUM_BLOCKS + 2)]


def test_root_parameters_live_from_the_first_forward_to_the_end() -> None:
    """The root is gathered from the start of forward to the final callback (docs/fsdp2.md)."""
    found = at_depth(0)
    assert found.points[Phase.FORWARD]
    sizes = [point.by_category_bytes.get(UNSHARDED, 0) for phase in found.points.values() for point in phase]
    first = next(index for index, size in enumerate(sizes) if size)
    last = max(index for index, size in enumerate(sizes) if size)
    assert min(sizes[first : last + 1]) == ROOT
    assert found.points[Phase.BACKWARD][-1].by_category_bytes.get(UNSHARDED, 0) == 0
