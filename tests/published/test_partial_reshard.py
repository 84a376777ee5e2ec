"""Resharding to fewer ranks (an integer `reshard_after_forward`) on a shard degree of 8."""

import pytest

from planner.program.events import Phase
from planner.program.outline import OutlineKind
from planner.schema import InconsistentRequest, MemoryCategory, Reserve
from planner.simulate import predict
from tests.planner.factories import tiny_request
from tests.published.steps import BLOCK_BYTES, Step, block_model, step

NUM_BLOCKS, SHARD = 6, 8
UNSHARDED = MemoryCategory.UNSHARDED_PARAMETERS


def to_ranks(reshard: bool | int) -> Step:
    return step(block_model(NUM_BLOCKS), SHARD, reshard=reshard)


def copied_in(found: Step, phase: Phase) -> set[int]:
    return {
        one.size_bytes
        for one in found.outline
        if one.kind is OutlineKind.COPY_IN and one.phase is phase and one.unit.startswith("layers.")
    }


@pytest.mark.parametrize("ranks", [2, 4])
def test_divisors_are_allowed_and_keep_their_share(ranks: int) -> None:
    """2 and 4 of 8 allowed; 4 keeps 1/4 instead of 1/8 of each unit between the passes (reported case 9).

    In truth beside the 1/8: the sharded parameters stay, so 3/8 where both are of one element type.
    """
    found = to_ranks(ranks)
    between_passes = found.points[Phase.FORWARD][-1].by_category_bytes[UNSHARDED]
    assert between_passes == BLOCK_BYTES + NUM_BLOCKS * BLOCK_BYTES // ranks  # the root is gathered
    assert found.peaks.optimizer.by_category_bytes[MemoryCategory.PARAMETERS] == (NUM_BLOCKS + 1) * BLOCK_BYTES // 8


@pytest.mark.parametrize("ranks", [2, 4])
def test_backward_gathers_use_those_ranks_and_forward_all(ranks: int) -> None:
    """Backward gathers over 4 ranks, forward gathers and reductions over 8 (reported case 9)."""
    found = to_ranks(ranks)
    assert copied_in(found, Phase.FORWARD) == {BLOCK_BYTES // SHARD}
    assert copied_in(found, Phase.BACKWARD) == {BLOCK_BYTES // ranks}
    assert found.sizes(OutlineKind.ALL_GATHER, "layers.2") == {BLOCK_BYTES}
    assert found.sizes(OutlineKind.REDUCE_SCATTER, "layers.2") == {BLOCK_BYTES}
    assert found.collectives == (2 * NUM_BLOCKS + 1, NUM_BLOCKS + 1)


def test_what_divides_nothing_is_refused() -> None:
    """3 of 8 is refused (reported case 9; `_get_post_forward_mesh_info`)."""
    found = to_ranks(3)
    with pytest.raises(InconsistentRequest, match="3 does not divide the shard degree 8"):
        predict(found.request, found.decisions)


def test_one_means_false_and_all_ranks_mean_true() -> None:
    """1 keeps the unit gathered, 8 shards it again (reported case 9)."""
    assert to_ranks(1).outline == to_ranks(False).outline
    assert to_ranks(8).outline == to_ranks(True).outline
    assert to_ranks(1).outline != to_ranks(True).outline


def test_each_unit_makes_a_communicator_of_its_own() -> None:
    """The report counts one more process group of about 0.7 GB (reported case 9). It is one for each such unit.

    `fully_shard` of torch 2.11 to 2.13 builds a `DeviceMesh` for every call with an integer: two new process
    groups, of which the one over the ranks resharded to communicates, even where another unit has the same ranks.
    """
    found = to_ranks(4)
    cluster = found.request.cluster.model_copy(update={"reserve": Reserve(context_bytes=0, fragmentation=0.0)})
    request = tiny_request(found.request.model, cluster)
    request = request.model_copy(update={"profile": None})
    whole, partial = (predict(request, one.decisions).budget for one in (to_ranks(True), found))
    assert partial.num_communicators - whole.num_communicators == NUM_BLOCKS
    assert partial.communicators_bytes - whole.communicators_bytes == NUM_BLOCKS * 690_000_000
