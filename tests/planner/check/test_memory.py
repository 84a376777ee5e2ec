"""Bytes by pool: worked out by hand, and against the closed forms of FSDP2's lifetimes."""

from dataclasses import replace

import pytest

from planner.check import recompute
from planner.check.machine import Stream
from planner.check.step import Replay
from planner.schema import (
    OUTPUT_PATH,
    Call,
    CallRole,
    DType,
    MemoryCategory,
    Precision,
    RuntimeKnobs,
    UnitPlan,
)
from planner.schema.model import KeptBy, SharedTensor
from planner.schema.polynomial import Polynomial
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.factories import (
    DURATIONS,
    FULL_PRECISION,
    MIXED_PRECISION,
    CallSpec,
    call_kind,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_request,
)

NUM_BLOCKS = 6


def blocks_only(num_blocks: int = 2, num_devices: int = 2, block: CallSpec | None = None, **kwargs):
    model_options = {"dtype": kwargs.pop("dtype", DType.FLOAT32), "shared": kwargs.pop("shared", ())}
    block = block or CallSpec(shapes=((8, 4),))
    model = tiny_model(num_blocks, block=block, embedding=None, norm=None, head=None, loss=None, **model_options)
    return tiny_request(model, tiny_cluster(num_devices), **kwargs)


class Observed(Replay):
    """Counts gathered blocks during each call, as FSDP2's users see them."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.gathered: dict[str, list[int]] = {"forward": [], "backward": []}

    def _count(self) -> int:
        return sum(group.is_gathered for group in self.groups.values())

    def run_forward(self, index: int) -> None:
        self.gathered["forward"].append(self._count())
        super().run_forward(index)

    def run_backward(self, index: int) -> None:
        self.gathered["backward"].append(self._count())
        super().run_backward(index)


def test_two_blocks_by_hand() -> None:
    # A block is 32 elements: shard 64 B, gathered P = G = R = 128, sharded gradient 64, Adam 128. Persistent 384.
    # compute  backward of L0: 384 + U 128 + R of L1 128 + G 128 = 768; optimizer step 384 + 128
    # copy_in  gather of L1 while the copy-out of L0 is deferred: 256
    # reduce   two sharded gradients: 128
    # allocated  after the backward of L0: 768 + gradient of L1 64
    request = blocks_only()
    found = recompute(request, tiny_decisions(request), FlatCosts())
    assert found.pools_bytes == {"compute": 768, "copy_in": 256, "reduce": 128}
    assert found.reserved_bytes == 1_152
    assert found.allocated_bytes == 832
    assert sum(found.by_category_bytes.values()) == 832


def test_gradients_of_inputs_wait_for_the_post_backward() -> None:
    # As above; 10 B are on their way after each backward, 1,000 more until they are added, 3,000 while they are.
    # After the backward of L0: 384 + U 128 + R of L1 128 + G 128 + 1,010; sums of L0: 384 + R 128 + 3,010.
    block = CallSpec(shapes=((8, 4),), after_backward=10, before_sums=1_000)
    request = blocks_only(block=block)
    assert recompute(request, tiny_decisions(request), FlatCosts()).pools_bytes["compute"] == 768 + 1_010
    request = blocks_only(block=replace(block, in_sums=(2_000, 3_000)))
    found = recompute(request, tiny_decisions(request), FlatCosts())
    assert found.pools_bytes == {"compute": 384 + 128 + 3_010, "copy_in": 256, "reduce": 128}
    assert found.by_category_bytes[MemoryCategory.TRANSIENTS] == 3_010


def test_the_last_gather_is_held_until_the_output_is_cast() -> None:
    # One block, 192 B for good. The gather's output 128 lies beside the cast, not beside the loss.
    model = tiny_model(1, embedding=None, norm=None, head=None, loss=CallSpec(forward_live=(1_100,)))
    output = call_kind(CallSpec(forward_live=(1_000,), backward_live=((500, 0),)), CallRole.GLUE)
    calls = (model.calls[0], Call(path=OUTPUT_PATH, kind="output"), model.calls[1])
    model = model.model_copy(update={"calls": calls, "kinds": {**model.kinds, "output": output}})
    request = tiny_request(model, tiny_cluster(2))
    costs = FlatCosts(durations={**DURATIONS, "output": (5, 5, 5)})
    found = recompute(request, tiny_decisions(request), costs)
    assert found.allocated_bytes == 192 + 128 + 1_000
    assert found.pools_bytes == {"compute": 192 + 1_100, "copy_in": 128, "reduce": 64}


def test_gathering_casts_the_shard_first() -> None:
    # bfloat16 gathers of a float32 shard: P = 64, one cast copy of 32 beside two outputs.
    request = blocks_only(precision=MIXED_PRECISION)
    assert recompute(request, tiny_decisions(request), FlatCosts()).pools_bytes["copy_in"] == 2 * 64 + 32


def test_one_rank_casts_each_parameter_alone() -> None:
    # No all-gather output. Parameters of 64 and 32 B in bfloat16, casts 64 then 32; U 96.
    # Forward: max(64 cast + 64 U, 64 + 32 casts + 64 U, 32 cast + 96 U) = 160 beside 192 + 384 persistent.
    block = CallSpec(shapes=((8, 4), (4, 4)))
    request = blocks_only(1, 1, block, precision=MIXED_PRECISION)
    replay = Replay(request, tiny_decisions(request), FlatCosts())
    replay.allocate_persistent()
    replay.forward()
    assert replay.machine.pool_peaks == {Stream.COMPUTE: 192 + 384 + 160}


@pytest.mark.parametrize(
    ("depth", "forward", "backward"), [(0, 1, 2), (1, 2, 2), (2, 3, 3), (3, 4, 4)], ids=lambda value: str(value)
)
def test_gathered_blocks_by_prefetch_depth(depth: int, forward: int, backward: int) -> None:
    request = blocks_only(NUM_BLOCKS)
    decisions = tiny_decisions(request, forward_prefetch=depth, backward_prefetch=depth)
    replay = Observed(request, decisions, FlatCosts())
    replay.run()
    assert max(replay.gathered["forward"]) == forward
    assert max(replay.gathered["backward"]) == backward


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("num_buffers", [1, 2])
def test_closed_forms_of_the_peak(depth: int, num_buffers: int) -> None:
    # Forward U + max(2, n + 1) A; backward U + max(1, n) A + G + K R + sharded gradients.
    gathered, shard, persistent = 128, 64, NUM_BLOCKS * 192
    request = blocks_only(NUM_BLOCKS)
    knobs = RuntimeKnobs(reduce_scatter_max_input_buffers=num_buffers)
    decisions = tiny_decisions(request, forward_prefetch=depth, backward_prefetch=depth, runtime=knobs)
    replay = Replay(request, decisions, FlatCosts())
    replay.allocate_persistent()
    replay.forward()
    peaks = replay.machine.pool_peaks
    assert peaks == {Stream.COMPUTE: persistent + gathered, Stream.COPY_IN: max(2, depth + 1) * gathered}
    peaks.clear()
    replay.backward()
    assert peaks[Stream.COPY_IN] == max(1, depth) * gathered
    assert peaks[Stream.COMPUTE] == persistent + gathered + gathered + num_buffers * gathered
    assert peaks[Stream.REDUCE] == NUM_BLOCKS * shard


@pytest.mark.parametrize("num_blocks", [1, 2, 5])
def test_published_counts(num_blocks: int) -> None:
    def count(**kwargs) -> tuple[int, int]:
        request = tiny_request(tiny_model(num_blocks))
        found = recompute(request, tiny_decisions(request, **kwargs), FlatCosts())
        return found.num_all_gathers, found.num_reduce_scatters

    assert count() == (2 * num_blocks + 1, num_blocks + 1)
    assert count(reshard=False) == (num_blocks + 1, num_blocks + 1)
    assert count(root_reshard=True) == (2 * num_blocks + 2, num_blocks + 1)
    assert count(forward_prefetch=2, backward_prefetch=2) == (2 * num_blocks + 1, num_blocks + 1)


def test_everything_is_given_back() -> None:
    request = tiny_request()
    replay = Replay(request, tiny_decisions(request, forward_prefetch=2), FlatCosts())
    replay.run()
    shards = sum(parameter.stored_bytes for unit in replay.units for parameter in unit.parameters)
    assert replay.machine.live_bytes(Stream.COMPUTE) == 3 * shards
    assert replay.machine.live_bytes(Stream.COPY_IN) == 0
    assert replay.machine.live_bytes(Stream.REDUCE) == shards


def hybrid(dtype: DType, precision: Precision, replicate: int = 2, **kwargs):
    """32 units of 200e6 parameters, shard degree 8."""
    block = CallSpec(shapes=((20_000, 10_000),))
    request = blocks_only(32, 8 * replicate, block, dtype=dtype, precision=precision, **kwargs)
    return recompute(request, tiny_decisions(request, replicate=replicate), FlatCosts()).pools_bytes


def test_hybrid_reduce_buffers_add_up_under_bfloat16_storage() -> None:
    pools = hybrid(DType.BFLOAT16, MIXED_PRECISION)
    assert pools["reduce"] == 32 * 100_000_000
    assert pools["all_reduce"] == 32 * 50_000_000


def test_hybrid_reduce_buffers_are_the_gradients_under_float32_storage() -> None:
    pools = hybrid(DType.FLOAT32, MIXED_PRECISION)
    assert pools["reduce"] == 32 * 100_000_000
    assert "all_reduce" not in pools


def test_one_reduce_buffer_on_a_flat_mesh() -> None:
    pools = hybrid(DType.BFLOAT16, MIXED_PRECISION, replicate=1)
    assert pools["reduce"] == 32 * 50_000_000 + 100_000_000


def test_accumulated_hybrid_gradients_hold_the_reduced_ones_too() -> None:
    # Reduce output and gradient are one tensor, which stays to the end of backward beside the accumulated ones.
    pools = hybrid(DType.FLOAT32, MIXED_PRECISION, num_micro_batches=2)
    assert pools["reduce"] == 2 * 32 * 100_000_000


def test_accumulation_on_a_flat_mesh_frees_the_new_gradient() -> None:
    pools = hybrid(DType.FLOAT32, FULL_PRECISION, replicate=1, num_micro_batches=2)
    assert pools["reduce"] == 33 * 100_000_000


def test_activations_and_moments() -> None:
    # Each block keeps 1,000; its moments hold 1,500 in forward, 1,800 in backward with the first of two gradients.
    # forward of L1: 576 persistent + U 192 + kept 1,000 + 1,500; backward of L1: 576 + 192 + 1,000 + 1,800 + 64
    block = CallSpec(shapes=((8, 4), (4, 4)), saved=1_000, forward_live=(1_500,), backward_live=((1_800, 1),))
    request = blocks_only(2, 2, block)
    assert recompute(request, tiny_decisions(request), FlatCosts()).pools_bytes["compute"] == 3_632


def test_checkpointing_keeps_less() -> None:
    # L1 keeps 10 in place of 1,000; backward of L1 at 576 + 192 + 1,000 + 2,500.
    block = CallSpec(shapes=((8, 4), (4, 4)), saved=1_000, full_saved=10, full_backward_live=((2_500, 0),))
    request = blocks_only(2, 2, block)
    found = recompute(request, tiny_decisions(request, checkpoint=["layers.1"]), FlatCosts())
    assert found.pools_bytes["compute"] == 576 + 192 + 1_000 + 2_500


def test_shared_tensor_lives_to_the_backward_of_its_first_call() -> None:
    block = CallSpec(shapes=((8, 4),), saved=100, backward_live=((0, 0),))
    shared = (SharedTensor(size_bytes=Polynomial(one=5_000), first_call=0, last_call=2),)
    request = blocks_only(3, 2, block, shared=shared)
    # After forward: 3 x 192 persistent, 3 x 100 saved, 5,000 shared; the root gathers nothing.
    replay = Replay(request, tiny_decisions(request), FlatCosts())
    replay.allocate_persistent()
    replay.forward()
    assert replay.machine.live_bytes(Stream.COMPUTE) == 576 + 300 + 5_000
    replay.backward()
    assert replay.machine.live_bytes(Stream.COMPUTE) == 576 + 128  # the last reduce input


@pytest.mark.parametrize(
    ("checkpointed", "expected"),
    [
        ([], [5_100, 5_200, 300]),
        (["layers.0"], [5_010, 5_110, 5_210]),
        (["layers.1"], [5_100, 5_110, 5_210]),
    ],
    ids=["nobody keeps it", "the first keeps it", "the second keeps it"],
)
def test_what_callers_hold_is_alive_up_to_the_last_call_in_which_they_do(
    checkpointed: list[str], expected: list[int]
) -> None:
    block = CallSpec(shapes=((8, 4),), saved=100, full_saved=10, backward_live=((0, 0),))
    tensor = SharedTensor(
        size_bytes=Polynomial(one=5_000), first_call=0, last_call=1, kept_by=KeptBy.FULL, held_until=1
    )
    request = blocks_only(3, 2, block, shared=(tensor,))
    replay = Replay(request, tiny_decisions(request, checkpoint=checkpointed), FlatCosts())
    alive = []
    for index in replay.calls.main:
        replay.end_loans(index)
        replay.run_forward(index)
        alive.append(replay.machine.live_bytes(Stream.COMPUTE))
    assert alive == expected


def test_tied_gradient_is_counted_once() -> None:
    request = tiny_request(tiny_model(1, tied_head=True))
    found = recompute(request, tiny_decisions(request), FlatCosts())
    # embed 64 elements (tied), norm 4, block 32: persistent 12 B x 50 elements on each of 2 ranks.
    # Final callback of the root: reduce input of the root (272) beside its gradients (272).
    # Before it: U of the root 272, its gradients 272, retained input of the block 128.
    assert found.pools_bytes["compute"] == 12 * 50 + 272 + 272 + 128 + 128
    assert found.num_reduce_scatters == 2


def test_uneven_rows_are_padded() -> None:
    # 5 rows over 4 ranks: 2 rows each, gathered as 8 rows.
    request = blocks_only(1, 4, CallSpec(shapes=((5, 4),)))
    found = recompute(request, tiny_decisions(request), FlatCosts())
    assert found.pools_bytes["copy_in"] == 8 * 4 * 4
    assert found.pools_bytes["reduce"] == 2 * 4 * 4


def test_optimizer_step_can_be_the_peak() -> None:
    # Many small blocks: persistent 12 B per element of the shards, one more copy of the shards in the step.
    request = blocks_only(20)
    found = recompute(request, tiny_decisions(request), FlatCosts())
    assert found.pools_bytes["compute"] == 20 * (192 + 64)
    assert found.by_category_bytes[MemoryCategory.TRANSIENTS] == 20 * 64


def test_frozen_first_unit_holds_its_gather_to_the_end() -> None:
    frozen = CallSpec(shapes=((16, 4),), requires_grad=False, input_requires_grad=False, output_requires_grad=False)
    request = tiny_request(tiny_model(2, embedding=frozen))
    replay = Replay(request, tiny_decisions(request, extra_units=[UnitPlan(modules=("embed",))]), FlatCosts())
    replay.allocate_persistent()
    replay.forward()
    replay.backward()
    assert replay.machine.live_bytes(Stream.COPY_IN) == 16 * 4 * 4
    replay.final_callback()
    assert replay.machine.live_bytes(Stream.COPY_IN) == 0


def test_inputs_of_a_micro_batch_live_through_the_whole_step():
    inputs = Polynomial(b=40, bs=8)
    without = tiny_request(tiny_model(), micro_batch=3)
    with_inputs = tiny_request(tiny_model(inputs_bytes=inputs), micro_batch=3)
    before, after = (recompute(request, tiny_decisions(request)) for request in (without, with_inputs))
    size = 3 * 40 + 3 * 8 * 8
    assert after.pools_bytes[Stream.COMPUTE] == before.pools_bytes[Stream.COMPUTE] + size
    assert after.by_category_bytes[MemoryCategory.BUFFERS] == size
