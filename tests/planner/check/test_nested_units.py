"""Units inside blocks, and units that run several times, by hand; costs as in `test_clocks.py`.

A weight has 64 elements in float32: gathered 256 B, shard of 2 ranks 128 B, Adam 256 B.
"""

import pytest

from planner.check import recompute
from planner.check.machine import Stream
from planner.check.step import Replay
from planner.check.units import in_enter_order, in_leave_order
from planner.schema import InconsistentRequest, RuntimeKnobs, UnitPlan
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.check.nested import (
    NESTED_DURATIONS,
    Block,
    Knobs,
    nested_decisions,
    nested_model,
    nested_request,
)
from tests.planner.factories import CallSpec, tiny_decisions, tiny_model, tiny_request

COSTS = FlatCosts(durations=NESTED_DURATIONS)
NESTED = ("attn", "mlp", "")


def test_clocks_of_nested_units() -> None:
    # forward   block: copy-in 0-1, gather 1-41, copy-out 41-42, norm 42-142
    #           attn: copy-in 1-2, gather 41-81, copy-out 142-143, 143-243
    #           mlp: copy-in 42-43, gather 81-121, copy-out 243-244, 244-344; gather streams wait for 244
    # backward  mlp: copy-in 244-245, gather 245-285, copy-out 344-345; prefetch of attn: 345-346, 346-386
    #           block, whose output is that of mlp: copy-in 346-347, gather 386-426, copy-out 426-427
    #           mlp 427-627, chunk_cat 627-628, reduce-scatter 628-658
    #           attn: copy-out 628-629, 629-829, chunk_cat 829-830, reduce-scatter 830-860
    #           norm 830-1030; block: chunk_cat 1030-1031, reduce-scatter 1031-1061
    request = nested_request(nested_model(1, root=False))
    found = recompute(request, nested_decisions(request, Knobs(units=NESTED)), COSTS)
    assert found.micro_batch_ns == 1_061
    assert (found.num_all_gathers, found.num_reduce_scatters) == (6, 3)


def test_an_inner_unit_holds_its_parameters_alone() -> None:
    request = nested_request(nested_model(1, root=False))
    replay = Replay(request, nested_decisions(request, Knobs(units=NESTED)), COSTS)
    owned = {unit.name: [parameter.name for parameter in unit.parameters] for unit in replay.units}
    assert owned == {
        "layers.0.attn": ["layers.0.attn.w0"],
        "layers.0.mlp": ["layers.0.mlp.w0"],
        "layers.0": ["layers.0.norm.w0"],
        "": [],
    }


def test_memory_of_nested_units() -> None:
    # Persistent 3 x 384. Each part saves 16.
    # forward   block and attn, or block and mlp, whole: 512
    # backward  block and mlp whole, gradient of mlp: 768, kept 32 -> with attn: block, attn, its gradient and the
    #           reduce input of mlp: 4 x 256, kept 16
    # copy_in   two outputs at a time
    request = nested_request(nested_model(1, root=False))
    found = recompute(request, nested_decisions(request, Knobs(units=NESTED)), COSTS)
    assert found.pools_bytes == {"compute": 3 * 384 + 4 * 256 + 16, "copy_in": 512, "reduce": 3 * 128}


def test_a_unit_that_runs_twice_reduces_once() -> None:
    # Autograd delivers the sum of both uses when backward has passed the first one.
    # forward   pass 1: gather 1-41, copy-out 41-42, 42-1042; pass 2: gather 41-81, copy-out 1042-1043, 1043-2043
    # backward  pass 2: copy-in 1043-1044, gather 1044-1084, copy-out 2043-2044, 2044-4044, nothing to reduce
    #           pass 1: copy-in 2044-2045, gather 2045-2085, copy-out 4044-4045, 4045-6045
    #           chunk_cat 6045-6046, reduce-scatter 6046-6076
    request = nested_request(nested_model(1, repeats=2, root=False))
    found = recompute(request, nested_decisions(request), COSTS)
    assert found.micro_batch_ns == 6_076
    assert (found.num_all_gathers, found.num_reduce_scatters) == (4, 1)


def test_memory_of_a_unit_that_runs_twice() -> None:
    # Persistent 1152, block gathered 768, gradients 768. Copy-out of pass 1 while autograd holds the gradients of
    # pass 2: 1152 + 768 + 768 + 48 saved by pass 1.
    request = nested_request(nested_model(1, repeats=2, root=False))
    found = recompute(request, nested_decisions(request), COSTS)
    assert found.pools_bytes == {"compute": 2_736, "copy_in": 2 * 768, "reduce": 384}


def test_a_kept_unit_that_runs_twice_is_gathered_again_for_the_backward_of_its_first_pass() -> None:
    # The post-backward of the second pass has resharded it.
    request = nested_request(nested_model(1, repeats=2, root=False))
    found = recompute(request, nested_decisions(request, Knobs(reshard=False)), COSTS)
    assert found.num_all_gathers == 2


def test_each_pass_prefetches_the_pass_before_it() -> None:
    # Passes in forward: L0 L0 L1 L1. Backward of L1's first pass prefetches L0, of L0's second pass itself.
    request = nested_request(nested_model(2, repeats=2, root=False))
    replay = Replay(request, nested_decisions(request), COSTS)
    replay.allocate_persistent()
    replay.forward()
    assert [group.unit.name for group in replay.comm.post_forward_order] == ["layers.0"] * 2 + ["layers.1"] * 2
    replay.backward()
    assert replay.comm.num_all_gathers == 8


def test_zeros_are_reduced_for_a_pass_whose_gradients_are_not_there_yet() -> None:
    # Zeros of all four weights in the post-backward of pass 2, of the unused one in that of pass 1, which adds.
    request = nested_request(nested_model(1, repeats=2, root=False, block=Block(has_spare=True)))
    knobs = Knobs(runtime=RuntimeKnobs(reduce_scatter_unused_params=True))
    found = recompute(request, nested_decisions(request, knobs), COSTS)
    assert found.num_reduce_scatters == 2
    assert found.pools_bytes["reduce"] == 2 * 4 * 128


def test_a_second_reduction_waits_for_the_first_and_lets_go_of_its_all_reduce() -> None:
    # On a hybrid mesh the buffer of the first all-reduce is the sharded gradient; that of the second is added to it
    # and held to the end of backward.
    request = nested_request(nested_model(1, repeats=2, root=False, block=Block(has_spare=True)), num_devices=4)
    knobs = Knobs(replicate=2, runtime=RuntimeKnobs(reduce_scatter_unused_params=True))
    replay = Replay(request, nested_decisions(request, knobs), COSTS)
    found = replay.run()
    assert found.num_all_reduces == 2
    assert found.pools_bytes["reduce"] == 2 * 4 * 128
    assert replay.machine.live_bytes(Stream.REDUCE) == 4 * 128


def test_a_container_of_repeated_blocks_runs_once() -> None:
    request = nested_request(nested_model(1, repeats=3, root=False))
    decisions = nested_decisions(request)
    units = (UnitPlan(modules=("layers",)), decisions.units[-1])
    found = recompute(request, decisions.model_copy(update={"units": units}), COSTS)
    assert found.num_all_gathers == 2


def test_modules_of_a_group_run_equally_often() -> None:
    # `layers.0` runs twice, `head` once: FSDP2 would leave the second round of the group with the root.
    request = nested_request(nested_model(1, repeats=2))
    decisions = nested_decisions(request)
    units = (UnitPlan(modules=("embed", "layers.0")), decisions.units[-1])
    with pytest.raises(InconsistentRequest, match="do not all run equally often"):
        recompute(request, decisions.model_copy(update={"units": units}), COSTS)


def test_a_second_pre_backward_before_any_post_backward_does_nothing() -> None:
    # The block is frozen, `embed` runs twice on indices: its post-backward comes with the final callback only, and
    # the pre-backward of its first pass does not prefetch the block. Recorded from torch 2.13: 5 gathers.
    frozen = CallSpec(shapes=((8, 8),), requires_grad=False, input_requires_grad=False, output_requires_grad=False)
    model = tiny_model(1, block=frozen, norm=None, loss=None)
    embed, first, head = model.calls
    request = tiny_request(model.model_copy(update={"calls": (first, embed, embed, head)}))
    decisions = tiny_decisions(request, extra_units=[UnitPlan(modules=("embed",))])
    found = recompute(request, decisions, FlatCosts())
    assert (found.num_all_gathers, found.num_reduce_scatters) == (5, 2)


def test_outer_units_are_entered_first_and_left_last() -> None:
    request = nested_request(nested_model(1, root=False))
    units = Replay(request, nested_decisions(request, Knobs(units=("norm", "mlp", ""))), COSTS).units
    assert [unit.name for unit, _ in in_enter_order(units)] == ["layers.0", "layers.0.norm", "layers.0.mlp"]
    assert [unit.name for unit, _ in in_leave_order(units)] == ["layers.0.norm", "layers.0.mlp", "layers.0"]
