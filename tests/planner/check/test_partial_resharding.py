"""Resharding to some of the ranks after forward; costs as in `test_clocks.py`, partial all-gathers 15 ns."""

import pytest

from planner.check import recompute
from planner.check.machine import Stream
from planner.check.step import Replay
from planner.schema import Polynomial, StateTier, UnitPlan
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.factories import (
    MIXED_PRECISION,
    CallSpec,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_request,
)


def blocks_only(num_blocks: int, num_devices: int = 4, **kwargs):
    model = tiny_model(num_blocks, embedding=None, norm=None, head=None, loss=None)
    return tiny_request(model, tiny_cluster(num_devices), **kwargs)


def test_clocks() -> None:
    # forward   L0: gather 1-41, copy-out 41-42, 42-142, reshard 142-143
    #           L1: gather 41-81, copy-out 143-144, 144-244, reshard 244-245
    # backward  L1 waits for its reshard: copy-in 245-246, gather 246-261, copy-out 261-262
    #           prefetch of L0: copy-in 262-263, gather 263-278
    #           L1 262-462, chunk_cat 462-463, reduce-scatter 463-493
    #           L0: copy-out 463-464, 464-664, chunk_cat 664-665, reduce-scatter 665-695
    request = blocks_only(2)
    found = recompute(request, tiny_decisions(request, reshard=2), FlatCosts())
    assert found.micro_batch_ns == 695
    assert (found.num_all_gathers, found.num_reduce_scatters) == (4, 2)


def test_memory() -> None:
    # A block is 32 elements: shard 32 B, gathered 128, half of it 64, Adam 64: persistent 2 x 96.
    # forward   L1 reshards beside the half of L0: 64 + 128 + 64 = 256
    # backward  L1: half of L0, whole, gradient: 64 + 128 + 128 = 320; L0: whole, gradient, reduce input of L1: 384
    request = blocks_only(2)
    found = recompute(request, tiny_decisions(request, reshard=2), FlatCosts())
    assert found.pools_bytes == {"compute": 192 + 384, "copy_in": 256, "reduce": 64}


def test_the_caller_holds_the_inputs_of_a_block_while_it_is_resharded() -> None:
    # As above; L1 is resharded beside 10 B that the next call gets and 1,000 that are freed when it has returned.
    request = blocks_only(2)
    block = request.model.kinds["block"]
    sizes = {"after_forward": Polynomial(one=10), "at_return": Polynomial(one=1_000)}
    kinds = {"block": block.model_copy(update={"none": block.none.model_copy(update=sizes)})}
    request = request.model_copy(update={"model": request.model.model_copy(update={"kinds": kinds})})
    found = recompute(request, tiny_decisions(request, reshard=2), FlatCosts())
    assert found.pools_bytes["compute"] == 192 + 256 + 1_010


def test_parameters_are_resharded_one_by_one() -> None:
    # Two parameters of 128 and 64 B: half of the first beside both whole, then both halves beside the second.
    block = CallSpec(shapes=((8, 4), (4, 4)))
    request = tiny_request(
        tiny_model(1, block=block, embedding=None, norm=None, head=None, loss=None), tiny_cluster(4)
    )
    replay = Replay(request, tiny_decisions(request, reshard=2), FlatCosts())
    replay.allocate_persistent()
    replay.forward()
    persistent = 12 * 12
    assert replay.machine.pool_peaks[Stream.COMPUTE] == persistent + 64 + 192
    assert replay.machine.live_bytes(Stream.COMPUTE) == persistent + 64 + 32


@pytest.mark.parametrize(("tier", "expected"), [(StateTier.DEVICE, 32 + 64), (StateTier.HOST, 16 + 64)])
def test_the_next_gather_copies_once_more_where_it_casts(tier: StateTier, expected: int) -> None:
    # bfloat16: gathered 64 B, half of it 32, which is copied though it is bfloat16 already. An offloaded unit does
    # not copy it, nor anything from the host; its first gather holds 16 cast beside 64.
    request = blocks_only(1, precision=MIXED_PRECISION)
    decisions = tiny_decisions(request, reshard=2)
    block = decisions.units[0].model_copy(update={"parameter_tier": tier, "optimizer_tier": tier})
    found = recompute(request, decisions.model_copy(update={"units": (block, decisions.units[1])}), FlatCosts())
    assert found.pools_bytes["copy_in"] == expected


def test_after_backward_the_unit_is_sharded_over_all_ranks() -> None:
    request = blocks_only(1)
    replay = Replay(request, tiny_decisions(request, reshard=2), FlatCosts())
    replay.allocate_persistent()
    replay.walk(is_last=False)
    assert replay.machine.live_bytes(Stream.COMPUTE) == 96
    first = replay.comm.num_all_gathers
    assert replay.walk(is_last=True) > 0
    assert (first, replay.comm.num_all_gathers) == (2, 2 + 2)


def test_a_unit_without_backward_keeps_its_part() -> None:
    # FSDP2 drops the part with the next copy-out only; after a final callback the next gather goes over all ranks,
    # and resharding makes the new part before it drops the old one.
    frozen = CallSpec(shapes=((16, 4),), requires_grad=False, input_requires_grad=False, output_requires_grad=False)
    request = tiny_request(tiny_model(2, embedding=frozen), tiny_cluster(4))
    embed = UnitPlan(modules=("embed",), reshard_after_forward=2)
    replay = Replay(request, tiny_decisions(request, extra_units=[embed]), FlatCosts())
    replay.allocate_persistent()
    before = replay.machine.live_bytes(Stream.COMPUTE)
    for _ in range(2):
        replay.walk(is_last=True)
        assert replay.machine.live_bytes(Stream.COMPUTE) == before + 16 * 4 * 4 // 2
