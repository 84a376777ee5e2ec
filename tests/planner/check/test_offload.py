"""Units in host memory by hand; costs as in `test_clocks.py`, copies from the host 50 ns, to the host 60.

A block is 32 elements in float32: shard of 2 ranks 64 B, gathered 128, Adam 128.
"""

import pytest

from planner.check import recompute
from planner.check.machine import Stream
from planner.check.step import Replay
from planner.schema import Decisions, DType, MemoryCategory, PlanRequest, Precision, StateTier
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.factories import (
    FULL_PRECISION,
    MIXED_PRECISION,
    CallSpec,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_request,
)


def blocks_only(num_blocks: int, num_devices: int = 2, **kwargs) -> PlanRequest:
    model = tiny_model(num_blocks, embedding=None, norm=None, head=None, loss=None)
    return tiny_request(model, tiny_cluster(num_devices), **kwargs)


def offloaded(request: PlanRequest, *, on_device: int = 0, **kwargs) -> Decisions:
    """All units but the first `on_device` in host memory."""
    decisions = tiny_decisions(request, **kwargs)
    update = {"parameter_tier": StateTier.HOST, "optimizer_tier": StateTier.HOST}
    kept, moved = decisions.units[:on_device], decisions.units[on_device:]
    return decisions.model_copy(update={"units": (*kept, *(unit.model_copy(update=update) for unit in moved))})


def test_clocks() -> None:
    # forward   from the host 0-50, copy-in 50-51, gather 51-91, copy-out 91-92, 92-192; gather streams wait for 92
    # backward  from the host 92-142, copy-in 142-143, gather 143-183, copy-out 192-193, 193-393
    #           chunk_cat 393-394, reduce-scatter 394-424, to the host 424-484
    # step      the CPU's optimizer takes 11
    request = blocks_only(1)
    found = recompute(request, offloaded(request), FlatCosts())
    assert found.micro_batch_ns == 484
    assert found.step_time_ns == 484 + 11


def test_memory() -> None:
    # compute   whole and gradient, then gradient and reduce input: 256
    # copy_in   the shard from the host 64 and the output 128
    # host      shard 64, Adam 128, gradient 64; foreach Adam's copy 64 in the step
    request = blocks_only(1)
    found = recompute(request, offloaded(request), FlatCosts())
    assert found.pools_bytes == {"compute": 256, "copy_in": 64 + 128, "reduce": 64}
    assert found.host_bytes == 256 + 64
    assert MemoryCategory.PARAMETERS not in found.by_category_bytes
    assert MemoryCategory.GRADIENTS not in found.by_category_bytes


def test_a_copy_from_the_host_lives_until_its_cast_is_made() -> None:
    # Shards of 64 and 32 B in float32, casts of 32 and 16, output 96: 64 + 32, then 32 + 32 + 16, then 48 + 96.
    block = CallSpec(shapes=((8, 4), (4, 4)))
    model = tiny_model(1, block=block, embedding=None, norm=None, head=None, loss=None)
    request = tiny_request(model, tiny_cluster(2), precision=MIXED_PRECISION)
    assert recompute(request, offloaded(request), FlatCosts()).pools_bytes["copy_in"] == 48 + 96


@pytest.mark.parametrize(("num_micro_batches", "expected"), [(1, 787), (2, 877)])
def test_the_cpu_waits_for_a_gradient_that_it_adds(num_micro_batches: int, expected: int) -> None:
    # forward   L0: from the host 0-50, gather 51-91, copy-out 91-92, 92-192
    #           L1: from the host 51-101, gather 102-142, copy-out 192-193, 193-293
    # backward  L1: from the host 193-243, copy-in 243-244, gather 244-284, copy-out 293-294, 294-494
    #           prefetch of L0: from the host 294-344, copy-in 344-345, gather 345-385
    #           L1: chunk_cat 494-495, reduce-scatter 495-525, to the host 525-585
    #           L0: copy-out 495-496, 496-696, chunk_cat 696-697, reduce-scatter 697-727, to the host 727-787
    # With a gradient on the host already, the CPU issues the copy-out of L0 at 585.
    request = blocks_only(2, num_micro_batches=num_micro_batches)
    assert recompute(request, offloaded(request), FlatCosts()).micro_batch_ns == expected


def test_the_cpu_waits_for_offloaded_gradients_in_the_end() -> None:
    # launch 1: the end of the last copy to the host is the end of the CPU.
    request = blocks_only(1)
    replay = Replay(request, offloaded(request), FlatCosts(launch_ns=1))
    replay.run()
    assert replay.machine.cpu_ns == replay.machine.time_ns(Stream.COMPUTE)


def test_accumulation_holds_one_new_gradient_on_the_host() -> None:
    # Two blocks of 256 B each; the gradient that is being added is less than foreach Adam's copy of both shards.
    request = blocks_only(2, num_micro_batches=2)
    assert recompute(request, offloaded(request), FlatCosts()).host_bytes == 2 * 256 + max(64, 2 * 64)


@pytest.mark.parametrize("precision", [FULL_PRECISION, MIXED_PRECISION, Precision(param_dtype=DType.BFLOAT16)])
def test_nothing_stays_on_the_device(precision: Precision) -> None:
    request = blocks_only(2, precision=precision)
    replay = Replay(request, offloaded(request), FlatCosts())
    replay.allocate_persistent()
    replay.walk(is_last=True)
    assert {pool: replay.machine.live_bytes(pool) for pool in Stream} == dict.fromkeys(Stream, 0)


def test_the_buffer_of_an_all_reduce_is_held_to_the_end_of_backward() -> None:
    # On a hybrid mesh each output of 64 B stays, though its copy is on the host.
    request = blocks_only(3, 4)
    replay = Replay(request, offloaded(request, replicate=2), FlatCosts())
    found = replay.run()
    assert found.pools_bytes["reduce"] == 3 * 64
    assert replay.machine.live_bytes(Stream.REDUCE) == 0


def test_one_rank_copies_from_the_host_on_the_compute_stream() -> None:
    # from the host 0-50, copy-out 50-51, 51-151; backward: from the host 151-201, copy-out 201-202, 202-402
    # chunk_cat 402-403, copy 403-404, to the host 404-464. The copy 128 lives until the block is whole.
    request = blocks_only(1, 1)
    replay = Replay(request, offloaded(request), FlatCosts())
    replay.allocate_persistent()
    replay.forward()
    assert replay.machine.pool_peaks == {Stream.COMPUTE: 128 + 128}
    found = recompute(request, offloaded(request), FlatCosts())
    assert found.micro_batch_ns == 464


def test_some_units_on_the_host() -> None:
    # Persistent on the device: one block of 64 + 128; both optimizers run one after the other.
    request = blocks_only(2)
    replay = Replay(request, offloaded(request, on_device=1), FlatCosts())
    found = replay.run()
    assert found.optimizer_ns == 7 + 11
    assert found.host_bytes == 256 + 64
    assert replay.machine.live_bytes(Stream.COMPUTE) == 192
    assert replay.machine.live_bytes(Stream.REDUCE) == 64
