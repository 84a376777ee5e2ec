"""Clocks worked out by hand: all-gather 40 ns, reduce-scatter 30, all-reduce 20, every copy 1, block 100 + 200."""

import pytest

from planner.check import recompute
from planner.check.machine import Stream
from planner.check.step import Replay
from planner.schema import DType, HostRuns, Precision, RuntimeKnobs, UnitPlan
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.factories import CallSpec, tiny_cluster, tiny_decisions, tiny_model, tiny_request


def blocks_only(num_blocks: int = 2, num_devices: int = 2, **kwargs):
    model = tiny_model(num_blocks, embedding=None, norm=None, head=None, loss=None)
    return tiny_request(model, tiny_cluster(num_devices), **kwargs)


def test_two_blocks_without_root_parameters() -> None:
    # forward   L0: copy-in 0-1, gather 1-41, copy-out 41-42, forward 42-142
    #           L1: copy-in 1-2, gather 41-81, copy-out 142-143, forward 143-243; gather streams wait for 143
    # backward  L1: copy-in 143-144, gather 144-184, copy-out 243-244, gather streams wait for 244
    #           prefetch of L0: copy-in 244-245, gather 245-285
    #           L1: backward 244-444, chunk_cat 444-445, reduce-scatter 445-475
    #           L0: copy-out 445-446, backward 446-646, chunk_cat 646-647, reduce-scatter 647-677
    # end       compute waits for 677
    request = blocks_only()
    found = recompute(request, tiny_decisions(request), FlatCosts())
    assert found.micro_batch_ns == 677
    assert found.step_time_ns == 684
    assert (found.num_all_gathers, found.num_reduce_scatters, found.num_all_reduces) == (4, 2, 0)


def test_a_thread_that_computes_gathers_ahead_only_where_it_is_told() -> None:
    # forward   L0: copy-in 0-1, gather 1-41, copy-out 41-42, forward 42-142; L1 the same 142-284
    # backward  L1: copy-in 284-285, gather 285-325, copy-out 325-326; L0: copy-in 326-327, gather 327-367
    #           L1: backward 327-527, chunk_cat 527-528, reduce-scatter 528-558
    #           L0: copy-out 528-529, backward 529-729, chunk_cat 729-730, reduce-scatter 730-760
    request = blocks_only()
    costs = FlatCosts(host_runs=HostRuns.KERNELS)
    assert recompute(request, tiny_decisions(request), costs).micro_batch_ns == 760


def test_a_thread_that_does_everything_adds_everything_up() -> None:
    # forward   L0: copy-in, gather, copy-out, forward 0-142; L1 the same 142-284
    # backward  L1: copy-in, gather, copy-out 284-326; L0: copy-in, gather 326-367
    #           L1: backward, chunk_cat, reduce-scatter 367-598; L0: copy-out 598-599, then the same 599-830
    request = blocks_only()
    costs = FlatCosts(host_runs=HostRuns.EVERYTHING)
    assert recompute(request, tiny_decisions(request), costs).micro_batch_ns == 830


def test_two_blocks_and_root() -> None:
    # forward   root: gather 1-41, copy-out 41-42, embed 42-52
    #           L0: gather 41-81, copy-out 81-82, forward 82-182
    #           L1: gather 81-121, copy-out 182-183, forward 183-283
    #           norm 283-293, head 293-343; gather streams wait for 183; loss 343-348
    # backward  loss 348-353; prefetch of L1: copy-in 183-184, gather 184-224; head 353-453, norm 453-473
    #           L1: copy-out 473-474; prefetch of L0: copy-in 474-475, gather 475-515
    #           L1: backward 474-674, chunk_cat 674-675, reduce-scatter 675-705
    #           L0: copy-out 675-676, backward 676-876, chunk_cat 876-877, reduce-scatter 877-907; embed 877-897
    # end       root: waits for 907 (retained input), chunk_cat 907-908, reduce-scatter 908-938
    request = tiny_request()
    found = recompute(request, tiny_decisions(request), FlatCosts())
    assert found.micro_batch_ns == 938
    assert (found.num_all_gathers, found.num_reduce_scatters) == (5, 3)


def test_a_second_reduce_buffer_hides_the_last_wait() -> None:
    # As above, but compute does not wait for 907: embed ends at 897, root: chunk_cat 897-898, reduce-scatter
    # 907-937.
    request = tiny_request()
    knobs = RuntimeKnobs(reduce_scatter_max_input_buffers=2)
    assert recompute(request, tiny_decisions(request, runtime=knobs), FlatCosts()).micro_batch_ns == 937


def test_kept_blocks_are_gathered_once() -> None:
    # Forward as in the first test ends at 243. L1: backward 243-443, chunk_cat 443-444, reduce-scatter 444-474.
    # L0: backward 444-644, chunk_cat 644-645, reduce-scatter 645-675.
    request = blocks_only()
    found = recompute(request, tiny_decisions(request, reshard=False), FlatCosts())
    assert found.micro_batch_ns == 675
    assert found.num_all_gathers == 2


def test_checkpointed_block_recomputes_first() -> None:
    # First test with L1's backward 244-544 (100 + 200): everything after moves by 100.
    request = blocks_only()
    found = recompute(request, tiny_decisions(request, checkpoint=["layers.1"]), FlatCosts())
    assert found.micro_batch_ns == 777


def test_cpu_issues_one_launch_after_the_other() -> None:
    # Launches: forward 2 x (copy-in, gather, copy-out, block) = 8; backward L1 copy-in, gather, copy-out, copy-in,
    # gather, block, chunk_cat, reduce-scatter = 8, L0 copy-out, block, chunk_cat, reduce-scatter = 4. The last is
    # issued at 19,000, starts at 20,000 and takes 30.
    request = blocks_only()
    assert recompute(request, tiny_decisions(request), FlatCosts(launch_ns=1_000)).micro_batch_ns == 20_030


def test_kernels_bound_the_end_of_a_call() -> None:
    # With 3 kernels a call, 4 calls: 8 more launches than above.
    request = blocks_only()
    costs = FlatCosts(launch_ns=1_000, kernels=3)
    assert recompute(request, tiny_decisions(request), costs).micro_batch_ns == 28_030


@pytest.mark.parametrize(("is_shared", "expected"), [(False, 3_576), (True, 3_676)])
def test_all_reduce_on_its_own_link_or_on_the_shared_one(is_shared: bool, expected: int) -> None:
    # Forward ends at 344. L2: gather 245-285, copy-out 344-345; prefetch of L1: gather 346-386.
    # L2: backward 345-545, chunk_cat 545-546, reduce-scatter 546-576, all-reduce 576-1576.
    # L1: copy-out 546-547; prefetch of L0: copy-in 547-548; backward 547-747, chunk_cat 747-748.
    # own link     gather L0 548-588; reduce-scatter L1 748-778, all-reduce 1576-2576; L0 copy-out 748-749,
    #              backward 749-949, chunk_cat 949-950, reduce-scatter 950-980, all-reduce 2576-3576
    # shared link  gather L0 1576-1616; reduce-scatter L1 1616-1646, all-reduce 1646-2646; L0 copy-out 1616-1617,
    #              backward 1617-1817, chunk_cat 1817-1818, reduce-scatter 2646-2676, all-reduce 2676-3676
    request = blocks_only(3, 4)
    costs = FlatCosts(all_reduce=1_000, all_reduce_shares_link=is_shared)
    found = recompute(request, tiny_decisions(request, replicate=2), costs)
    assert found.micro_batch_ns == expected
    assert found.num_all_reduces == 3


def test_accumulation_and_cast_follow_the_reduction() -> None:
    # Each reduce-scatter is followed by one post-reduce of two launches and two copies: the last ends at 677 + 2.
    precision = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.BFLOAT16)
    request = blocks_only(num_micro_batches=3, precision=precision)
    found = recompute(request, tiny_decisions(request), FlatCosts())
    assert found.micro_batch_ns == 679
    assert found.step_time_ns == 3 * 679 + 7


def test_one_rank_copies_instead_of_gathering() -> None:
    # copy-out 0-1, L0 1-101, copy-out 101-102, L1 102-202, copy-out 202-203, L1 203-403, chunk_cat 403-404 and a
    # copy on the reduce stream, L0 copy-out 404-405, backward 405-605, chunk_cat 605-606, copy 606-607.
    request = blocks_only(num_devices=1)
    found = recompute(request, tiny_decisions(request), FlatCosts())
    assert found.micro_batch_ns == 607
    assert (found.num_all_gathers, found.num_reduce_scatters) == (0, 0)


@pytest.mark.parametrize(("depth", "expected"), [(0, 2_901), (1, 2_600)])
def test_forward_prefetch_issues_a_gather_before_a_long_launch(depth: int, expected: int) -> None:
    # launch 100, 10 kernels a block, gather 900, forward 500.
    # L0: copy-in 100-101, gather 200-1100, copy-out 1100-1101, forward 1101-1601
    # implicit  L0's forward is issued from 300 to 1300; L1: copy-in 1400-1401, gather 1500-2400, copy-out 2400-2401
    # depth 1   L1: copy-in 400-401, gather 1100-2000, copy-out 2000-2001, forward issued from 1600 to 2600
    request = blocks_only()
    costs = FlatCosts(launch_ns=100, kernels=10, gather=900, durations={"block": (500, 0, 0)})
    replay = Replay(request, tiny_decisions(request, forward_prefetch=depth), costs)
    replay.forward()
    assert replay.machine.time_ns(Stream.COMPUTE) == expected


def test_frozen_first_unit_is_gathered_in_vain() -> None:
    # FSDP2 prefetches the unit before L0 in backward although nothing in it needs a gradient.
    frozen = CallSpec(shapes=((16, 4),), requires_grad=False, input_requires_grad=False, output_requires_grad=False)
    request = tiny_request(tiny_model(2, embedding=frozen))
    decisions = tiny_decisions(request, extra_units=[UnitPlan(modules=("embed",))])
    found = recompute(request, decisions, FlatCosts())
    assert (found.num_all_gathers, found.num_reduce_scatters) == (1 + 4 + 1 + 1, 3)
