"""Knobs of the reduction by hand; costs as in `test_clocks.py`."""

import pytest

from planner.check import recompute
from planner.check.machine import Stream
from planner.check.reduction import divides
from planner.check.step import Replay
from planner.schema import DType, Precision, RuntimeKnobs, ShardDim
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.check.nested import (
    NESTED_DURATIONS,
    Block,
    Knobs,
    nested_decisions,
    nested_model,
    nested_request,
)
from tests.planner.factories import CallSpec, tiny_cluster, tiny_decisions, tiny_model, tiny_request

COSTS = FlatCosts(durations=NESTED_DURATIONS)
HALF = Precision(param_dtype=None, reduce_dtype=DType.FLOAT16)


def blocks_only(num_blocks: int, num_devices: int, **kwargs):
    model = tiny_model(num_blocks, embedding=None, norm=None, head=None, loss=None)
    return tiny_request(model, tiny_cluster(num_devices), **kwargs)


@pytest.mark.parametrize(
    ("num_ranks", "before", "after"),
    [(1, False, False), (2, True, False), (3, True, True), (4, True, True), (8, True, True), (7, True, True)],
)
def test_ranks_that_float16_is_divided_by(num_ranks: int, before: bool, after: bool) -> None:
    # 2 = 2 x 1, 3 = 2 x 1.5, 4 = 2 x 2, 8 = 4 x 2, 7 = 2 x 3.5
    assert divides(DType.FLOAT16, num_ranks) == (before, after)
    assert divides(DType.FLOAT64, num_ranks) == (before, after)
    assert divides(DType.FLOAT32, num_ranks) == divides(DType.BFLOAT16, num_ranks) == (False, False)


@pytest.mark.parametrize(("num_devices", "expected"), [(2, 376), (4, 377)])
def test_float16_is_divided_before_and_after(num_devices: int, expected: int) -> None:
    # forward: gather 1-41, copy-out 41-42, 42-142; backward: gather 43-83, copy-out 142-143, 143-343
    # chunk_cat 343-344, divided 344-345, reduce-scatter 345-375, (divided again and) cast
    request = blocks_only(1, num_devices, precision=HALF)
    assert recompute(request, tiny_decisions(request), FlatCosts()).micro_batch_ns == expected


def test_float16_over_both_axes_is_divided_by_all_ranks() -> None:
    # As above, then all-reduce 375-395, divided and cast 395-397.
    request = blocks_only(1, 4, precision=HALF)
    assert recompute(request, tiny_decisions(request, replicate=2), FlatCosts()).micro_batch_ns == 397


@pytest.mark.parametrize(("reduces_unused", "expected", "reduced"), [(False, 3_074, 384), (True, 3_075, 512)])
def test_unused_parameters_are_reduced_as_zeros(reduces_unused: bool, expected: int, reduced: int) -> None:
    # forward: gather 1-41, copy-out 41-42, 42-1042; backward: copy-out 1042-1043, 1043-3043
    # (zeros 3043-3044), chunk_cat, reduce-scatter 30
    # A weight has 256 B, persistent 4 x 384, less the optimizer state of one not reduced. Zeros are made while
    # the unit is whole: 1024 + 768 + 256.
    request = nested_request(nested_model(1, root=False, block=Block(has_spare=True, saved=0)))
    runtime = RuntimeKnobs(reduce_scatter_unused_params=reduces_unused)
    found = recompute(request, nested_decisions(request, Knobs(runtime=runtime)), COSTS)
    assert found.micro_batch_ns == expected
    assert found.pools_bytes["reduce"] == reduced
    assert found.pools_bytes["compute"] == 4 * 384 - 256 * (not reduces_unused) + 1_024 + 768 + 256 * reduces_unused


def test_accumulating_steps_find_the_gradients_of_unused_parameters_too() -> None:
    request = nested_request(nested_model(1, root=False, block=Block(has_spare=True)), num_micro_batches=2)
    runtime = RuntimeKnobs(reduce_scatter_unused_params=True)
    found = recompute(request, nested_decisions(request, Knobs(runtime=runtime)), COSTS)
    assert found.pools_bytes["reduce"] == 2 * 512


def test_a_unit_that_never_runs_is_not_filled_with_zeros() -> None:
    # `layers.1` has no call, so that FSDP2 never made its unsharded parameters.
    model = nested_model(2, root=False)
    request = nested_request(model.model_copy(update={"calls": model.calls[:1]}))
    both = nested_decisions(nested_request(model))
    runtime = RuntimeKnobs(reduce_scatter_unused_params=True)
    found = recompute(request, both.model_copy(update={"runtime": runtime}), COSTS)
    assert found.num_reduce_scatters == 1


@pytest.mark.parametrize(
    ("is_separate", "is_concurrent", "expected"), [(1, 1, 3_548), (1, 0, 3_587), (0, 1, 3_587)]
)
def test_a_separate_group_is_a_link_of_its_own_where_collectives_can_overlap(
    is_separate: bool, is_concurrent: bool, expected: int
) -> None:
    # Reduce-scatters take 1000. As `test_all_reduce_on_its_own_link_or_on_the_shared_one` up to L2's reduce-scatter
    # 546-1546; L1: copy-out 546-547, 547-747; prefetch of L0: copy-in 547-548, gather on
    # one link   1546-1586; L1: chunk_cat 1546-1547, reduce-scatter 1586-2586; L0: copy-out 1586-1587, 1587-1787,
    #            waits for 2586, chunk_cat 2586-2587, reduce-scatter 2587-3587
    # two links  548-588; L1: chunk_cat 1546-1547, reduce-scatter 1547-2547; L0: copy-out 1547-1548, 1548-1748,
    #            waits for 2547, chunk_cat 2547-2548, reduce-scatter 2548-3548
    request = blocks_only(3, 4)
    costs = FlatCosts(reduce=1_000, concurrent_collectives=bool(is_concurrent))
    runtime = RuntimeKnobs(separate_reduce_scatter_group=bool(is_separate))
    assert recompute(request, tiny_decisions(request, runtime=runtime), costs).micro_batch_ns == expected


def test_the_event_after_the_optimizer_changes_nothing_in_a_step() -> None:
    request = blocks_only(2, 2)
    asked = tiny_decisions(request, runtime=RuntimeKnobs(post_optimizer_event=True))
    assert recompute(request, asked, FlatCosts()) == recompute(request, tiny_decisions(request), FlatCosts())


def test_clocks_of_another_dimension() -> None:
    # forward: gather 1-41, copy-out and rearrangement 41-43, 43-1043; backward: copy-out 1043-1045, 1045-3045,
    # rearrangement and chunk_cat 3045-3047, reduce-scatter 3047-3077
    request = nested_request(nested_model(1, root=False))
    found = recompute(request, nested_decisions(request, Knobs(dim=1)), COSTS)
    assert found.micro_batch_ns == 3_077


def test_memory_of_another_dimension() -> None:
    # Weights of 256 B, persistent 1152, kept 48.
    # copy-out   whole 768 beside a second buffer of as much; in backward with what is kept: 1152 + 1536 + 48
    # reduction  gradients 768 and the last of them twice, reduce input 768: 1152 + 1792
    request = nested_request(nested_model(1, root=False))
    replay = Replay(request, nested_decisions(request, Knobs(dim=1)), COSTS)
    replay.allocate_persistent()
    replay.forward()
    assert replay.machine.pool_peaks[Stream.COMPUTE] == 1_152 + 1_536
    replay.backward()
    assert replay.machine.pool_peaks[Stream.COMPUTE] == 1_152 + 1_792


def test_each_gradient_of_another_dimension_is_alive_twice_in_turn() -> None:
    # Parameters of 256, 128 and 64 B, dimension 1 of the first two; gradients 448, reduce input in bfloat16 224.
    # Rearranging the first: 448 + 256; the reduce input beside what was the second: 448 + 128 + 224.
    block = CallSpec(shapes=((16, 4), (8, 4), (4, 4)))
    precision = Precision(param_dtype=None, reduce_dtype=DType.BFLOAT16)
    model = tiny_model(1, block=block, embedding=None, norm=None, head=None, loss=None)
    request = tiny_request(model, tiny_cluster(2), precision=precision)
    dims = tuple(ShardDim(parameter=f"layers.0.{name}", dim=1) for name in ("w0", "w1"))
    decisions = tiny_decisions(request).model_copy(update={"shard_dims": dims})
    replay = Replay(request, decisions, FlatCosts())
    replay.allocate_persistent()
    replay.forward()
    replay.machine.pool_peaks.clear()
    replay.backward()
    persistent = 448 // 2 * 3
    assert replay.machine.pool_peaks[Stream.COMPUTE] == persistent + max(448 + 448, 448 + 256, 448 + 128 + 224)
    assert replay.machine.live_bytes(Stream.COMPUTE) == persistent + 224


def test_other_dimensions_are_not_padded() -> None:
    # 5 x 4 over 4 ranks: dimension 0 pads to 8 rows, dimension 1 to nothing.
    model = tiny_model(1, block=CallSpec(shapes=((5, 4),)), embedding=None, norm=None, head=None, loss=None)
    request = tiny_request(model, tiny_cluster(4))
    decisions = tiny_decisions(request)
    dims = (ShardDim(parameter="layers.0.w0", dim=1),)
    padded = recompute(request, decisions, FlatCosts())
    exact = recompute(request, decisions.model_copy(update={"shard_dims": dims}), FlatCosts())
    assert (padded.pools_bytes["copy_in"], exact.pools_bytes["copy_in"]) == (8 * 4 * 4, 5 * 4 * 4)
    assert (padded.pools_bytes["reduce"], exact.pools_bytes["reduce"]) == (2 * 4 * 4, 5 * 4)


def test_one_rank_has_nothing_to_rearrange() -> None:
    request = nested_request(nested_model(1, root=False), num_devices=1)
    asked = nested_decisions(request, Knobs(dim=1))
    assert recompute(request, asked, COSTS) == recompute(request, nested_decisions(request), COSTS)
