"""Steps whose micro-batches differ, by hand; costs as in `test_clocks.py`.

A block is 32 elements: shard of 2 ranks 64 B in float32, Adam 128 B.
"""

import pytest

from planner.check import recompute
from planner.check.machine import Stream
from planner.check.step import Replay, treats_alike
from planner.schema import Decisions, DType, GradientSync, PlanRequest, Precision, RuntimeKnobs
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.factories import (
    MIXED_PRECISION,
    CallSpec,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_request,
)

BFLOAT16 = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=None)
SYNC_ON_LAST = RuntimeKnobs(gradient_sync=GradientSync.LAST_MICRO_BATCH)
ALL_REDUCE_ON_LAST = RuntimeKnobs(gradient_sync=GradientSync.ALL_REDUCE_ON_LAST)
BLOCK = CallSpec(shapes=((8, 4),))


def blocks_only(num_blocks: int, num_micro_batches: int, num_devices: int = 2, block: CallSpec = BLOCK, **kwargs):
    model = tiny_model(num_blocks, block=block, embedding=None, norm=None, head=None, loss=None)
    return tiny_request(model, tiny_cluster(num_devices), num_micro_batches=num_micro_batches, **kwargs)


def kept_after_backward(request: PlanRequest, **kwargs) -> Decisions:
    decisions = tiny_decisions(request, **kwargs)
    units = tuple(unit.model_copy(update={"reshard_after_backward": False}) for unit in decisions.units)
    return decisions.model_copy(update={"units": units})


@pytest.mark.parametrize(("num", "expected"), [(1, 677), (2, 677 + 635), (3, 677 + 635 + 635), (9, 677 + 8 * 635)])
def test_units_stay_whole_from_backward_to_forward(num: int, expected: int) -> None:
    # first     as `test_two_blocks_without_root_parameters`: 677
    # later     L0 0-100, L1 100-200; L1: copy-in 0-1, gather 1-41, copy-out 200-201; prefetch of L0 202-242
    #           L1 201-401, chunk_cat 401-402, reduce-scatter 402-432, added 432-433
    #           L0: copy-out 402-403, 403-603, chunk_cat 603-604, reduce-scatter 604-634, added 634-635
    request = blocks_only(2, num)
    found = recompute(request, kept_after_backward(request), FlatCosts())
    assert found.step_time_ns == expected + 7
    assert found.num_all_gathers == 4 + 2 * (num - 1)


def test_units_that_are_never_resharded_are_gathered_once_in_a_step() -> None:
    # first     as `test_kept_blocks_are_gathered_once`: 675
    # later     forward 0-200; L1 200-400, chunk_cat 400-401, reduce-scatter 401-431, added 431-432
    #           L0 401-601, chunk_cat 601-602, reduce-scatter 602-632, added 632-633
    # compute   persistent 384, both whole 256, gradient and reduce input 256
    # reduce    both sharded gradients 128 and a new one 64
    request = blocks_only(2, 3)
    found = recompute(request, kept_after_backward(request, reshard=False), FlatCosts())
    assert found.step_time_ns == 675 + 2 * 633 + 7
    assert found.micro_batch_ns == 633
    assert (found.num_all_gathers, found.num_reduce_scatters) == (2, 3 * 2)
    assert found.pools_bytes == {"compute": 384 + 256 + 256, "copy_in": 256, "reduce": 192}


def test_gradients_are_kept_in_the_type_of_the_reduction() -> None:
    # forward   ends at 243, L1: copy-out 243-244, 244-444
    # first     L1: cast 444-445; L0: copy-out 445-446, 446-646, cast 646-647
    # middle    the same with sums
    # last      L1: added 444-445, chunk_cat 445-446, reduce-scatter 446-476
    #           L0: copy-out 446-447, 447-647, added 647-648, chunk_cat 648-649, reduce-scatter 649-679
    request = blocks_only(2, 3, precision=MIXED_PRECISION)
    found = recompute(request, tiny_decisions(request, runtime=SYNC_ON_LAST), FlatCosts())
    assert found.step_time_ns == 647 + 647 + 679 + 7
    assert (found.num_all_gathers, found.num_reduce_scatters) == (3 * 4, 2)


def test_memory_of_gradients_in_the_type_of_the_reduction() -> None:
    # bfloat16: whole 64, gradient 64; float32: gradient 128, reduce input 128; persistent 384.
    # first     L0 is cast beside the gradient of L1: 128 + 64 + 128 = 320
    # later     both sums, L0 whole, its gradient: 256 + 64 + 64 = 384; in the last one the same for L1
    request = blocks_only(2, 3, precision=MIXED_PRECISION)
    replay = Replay(request, tiny_decisions(request, runtime=SYNC_ON_LAST), FlatCosts())
    replay.allocate_persistent()
    peaks, left = [], []
    for index in range(3):
        replay.machine.pool_peaks.clear()
        replay.walk(is_last=index == 2)
        peaks.append(replay.machine.pool_peaks[Stream.COMPUTE] - 384)
        left.append((replay.machine.live_bytes(Stream.COMPUTE) - 384, replay.machine.live_bytes(Stream.REDUCE)))
    assert peaks == [320, 384, 384]
    assert left == [(256, 0), (256, 0), (0, 128)]


def test_gradients_of_the_right_type_stay_where_autograd_adds_to_them() -> None:
    # first     L1 244-444; L0: copy-out 444-445, 445-645
    # last      L1 244-445 with the sum, chunk_cat 445-446, reduce-scatter 446-476, cast 476-477
    #           L0: copy-out 446-447, 447-648, chunk_cat 648-649, reduce-scatter 649-679, cast 679-680
    request = blocks_only(2, 2, precision=BFLOAT16)
    found = recompute(request, tiny_decisions(request, runtime=SYNC_ON_LAST), FlatCosts())
    assert found.step_time_ns == 645 + 680 + 7


def test_a_gradient_lives_until_it_is_added() -> None:
    # Parameters of 64 and 32 B in bfloat16, persistent 48 / 2 x 12 = 288, whole 96.
    # first     10 live and both gradients: 106; later both sums and 10 live, a new one among them until it is added
    block = CallSpec(shapes=((8, 4), (4, 4)), backward_live=((10, 2),))
    request = blocks_only(1, 2, block=block, precision=BFLOAT16)
    found = recompute(request, tiny_decisions(request, runtime=SYNC_ON_LAST), FlatCosts())
    assert found.pools_bytes["compute"] == 288 + 96 + 96 + 10


def test_a_sum_of_several_uses_is_added_when_backward_has_passed_the_first() -> None:
    # embed and head share 64 elements, float32 on one rank: 256 B. From the backward of head to that of embed
    # autograd holds the new sum beside the old one.
    embedding = CallSpec(shapes=((16, 4),), input_requires_grad=False)
    model = tiny_model(0, embedding=embedding, norm=None, tied_head=True, loss=None)
    request = tiny_request(model, tiny_cluster(1), num_micro_batches=2)
    replay = Replay(request, tiny_decisions(request, runtime=SYNC_ON_LAST), FlatCosts())
    replay.allocate_persistent()
    persistent = replay.machine.live_bytes(Stream.COMPUTE)
    replay.walk(is_last=False)
    assert replay.machine.live_bytes(Stream.COMPUTE) == persistent + 256
    replay.comm.begin_micro_batch(is_last=True)
    replay.groups[""].begin_micro_batch()
    replay.forward()
    replay.comm.is_in_backward = True
    replay.run_backward(replay.calls.main[-1])
    assert replay.machine.live_bytes(Stream.COMPUTE) == persistent + 256 + 256 + 256
    replay.run_backward(replay.calls.main[0])
    assert replay.machine.live_bytes(Stream.COMPUTE) == persistent + 256 + 256


def test_one_all_reduce_in_a_step() -> None:
    # forward   gather 1-41, copy-out 41-42, 42-142; backward: gather 43-83, copy-out 142-143, 143-343
    # first     chunk_cat 343-344, reduce-scatter 344-374: the partial sum; middle: added 374-375
    # last      added 374-375, all-reduce 375-395
    # reduce    partial sum 64 and new output 64
    request = blocks_only(1, 3, num_devices=4)
    decisions = tiny_decisions(request, replicate=2, runtime=ALL_REDUCE_ON_LAST)
    found = recompute(request, decisions, FlatCosts())
    assert found.step_time_ns == 374 + 375 + 395 + 7
    assert (found.num_reduce_scatters, found.num_all_reduces) == (3, 1)
    assert found.pools_bytes["reduce"] == 128


def test_the_partial_sum_lives_to_the_end_of_the_last_reduction() -> None:
    # reduce in bfloat16: partial sum and output 32 each; the cast gradient 64 is in the all-reduce pool.
    precision = Precision(param_dtype=None, reduce_dtype=DType.BFLOAT16)
    request = blocks_only(1, 2, num_devices=4, precision=precision)
    decisions = tiny_decisions(request, replicate=2, runtime=ALL_REDUCE_ON_LAST)
    replay = Replay(request, decisions, FlatCosts())
    replay.allocate_persistent()
    replay.walk(is_last=False)
    assert replay.machine.live_bytes(Stream.REDUCE) == 32
    assert replay.machine.live_bytes(Stream.ALL_REDUCE) == 0
    replay.walk(is_last=True)
    assert replay.machine.pool_peaks[Stream.REDUCE] == 64
    assert replay.machine.live_bytes(Stream.REDUCE) == 0
    assert replay.machine.live_bytes(Stream.ALL_REDUCE) == 64


def test_without_replicas_the_all_reduce_setting_does_nothing() -> None:
    request = blocks_only(2, 3)
    plain, asked = tiny_decisions(request), tiny_decisions(request, runtime=ALL_REDUCE_ON_LAST)
    assert treats_alike(asked)
    assert recompute(request, asked, FlatCosts()) == recompute(request, plain, FlatCosts())


@pytest.mark.parametrize("runtime", [SYNC_ON_LAST, ALL_REDUCE_ON_LAST])
def test_a_step_of_one_micro_batch_syncs(runtime: RuntimeKnobs) -> None:
    request = blocks_only(2, 1, num_devices=4)
    plain = tiny_decisions(request, replicate=2)
    asked = tiny_decisions(request, replicate=2, runtime=runtime)
    assert recompute(request, asked, FlatCosts()) == recompute(request, plain, FlatCosts())
