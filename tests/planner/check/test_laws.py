"""Laws that hold for every sound set of decisions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.check.machine import Stream
from planner.check.step import Replay
from planner.check.structure import structural_problems
from planner.schema import DType, GradientSync, Precision, RuntimeKnobs, UnitPlan
from tests.planner.check.flat_costs import FlatCosts
from tests.planner.check.nested import (
    NESTED_DURATIONS,
    Block,
    Knobs,
    nested_decisions,
    nested_model,
    nested_request,
)
from tests.planner.factories import (
    FULL_PRECISION,
    MIXED_PRECISION,
    CallSpec,
    tiny_cluster,
    tiny_decisions,
    tiny_model,
    tiny_request,
)

NUM_BLOCKS = 4
BLOCK = CallSpec(
    shapes=((5, 4), (3,)), saved=40, forward_live=(60,), backward_live=((70, 1),), full_saved=4, kernels=(2, 3, 1)
)
BFLOAT16 = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=None)
HALF = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.FLOAT16)
PATHS = [f"layers.{index}" for index in range(NUM_BLOCKS)]


@st.composite
def replays(draw: st.DrawFn) -> Replay:
    """A small model on 4 ranks under any decisions that are modelled."""
    request = tiny_request(
        tiny_model(NUM_BLOCKS, block=BLOCK, buffers_bytes=11),
        tiny_cluster(4),
        precision=draw(st.sampled_from([FULL_PRECISION, MIXED_PRECISION])),
        num_micro_batches=draw(st.integers(1, 2)),
    )
    grouped = [UnitPlan(modules=("norm", "head"), reshard_after_forward=draw(st.booleans()))]
    decisions = tiny_decisions(
        request,
        replicate=draw(st.sampled_from([1, 2, 4])),
        root_reshard=draw(st.sampled_from([None, True, False])),
        keep=draw(st.lists(st.sampled_from(PATHS), unique=True)),
        checkpoint=draw(st.lists(st.sampled_from(PATHS), unique=True)),
        forward_prefetch=draw(st.integers(0, 3)),
        backward_prefetch=draw(st.integers(0, 3)),
        extra_units=grouped if draw(st.booleans()) else (),
        runtime=RuntimeKnobs(reduce_scatter_max_input_buffers=draw(st.integers(1, 3))),
    )
    return Replay(request, decisions, FlatCosts(launch_ns=draw(st.sampled_from([0, 5, 50]))))


@given(replays())
@settings(max_examples=60, deadline=None)
def test_a_step_gives_back_all_but_state_and_gradients(replay: Replay) -> None:
    found = replay.run()
    stored = sum(parameter.stored_bytes for unit in replay.units for parameter in unit.parameters)
    elements = sum(parameter.shard_elements for unit in replay.units for parameter in unit.parameters)
    live = {pool: replay.machine.live_bytes(pool) for pool in Stream}
    assert live[Stream.COMPUTE] == stored + 8 * elements + 11
    assert live[Stream.COPY_IN] == live[Stream.GATHER] == 0
    assert live[Stream.REDUCE] + live[Stream.ALL_REDUCE] == stored
    assert sum(found.pools_bytes.values()) == found.reserved_bytes >= found.allocated_bytes
    assert sum(found.by_category_bytes.values()) == found.allocated_bytes


@given(replays())
@settings(max_examples=40, deadline=None)
def test_a_step_is_no_shorter_than_its_compute(replay: Replay) -> None:
    found = replay.run()
    kinds = [call.kind for call in replay.model.calls]
    assert found.micro_batch_ns >= sum(sum(replay.costs.durations[kind][:2]) for kind in kinds)


@given(replays())
@settings(max_examples=40, deadline=None)
def test_slower_gathers_never_shorten_a_step(replay: Replay) -> None:
    slower = FlatCosts(launch_ns=replay.costs.launch_ns, gather=90)
    request = tiny_request(
        replay.model,
        tiny_cluster(4),
        precision=FULL_PRECISION if replay.decisions.param_dtype is None else MIXED_PRECISION,
        num_micro_batches=replay.decisions.num_micro_batches,
    )
    assert Replay(request, replay.decisions, slower).run().step_time_ns >= replay.run().step_time_ns


@st.composite
def nested_replays(draw: st.DrawFn, num_micro_batches: st.SearchStrategy[int] = st.integers(1, 4)) -> Replay:
    """Blocks with units inside, under any knobs that go together."""
    model = nested_model(
        draw(st.integers(1, 2)),
        repeats=draw(st.integers(1, 2)),
        block=Block(has_spare=draw(st.booleans()), end=draw(st.sampled_from(["", "glue", "tail"]))),
        root=draw(st.booleans()),
    )
    request = nested_request(
        model,
        num_devices=8,
        num_micro_batches=draw(num_micro_batches),
        precision=draw(st.sampled_from([FULL_PRECISION, MIXED_PRECISION, BFLOAT16, HALF])),
    )
    sync = draw(st.sampled_from(GradientSync))
    reshard = draw(st.sampled_from([True, False, 2]))
    knobs = Knobs(
        units=draw(st.sampled_from([("",), ("attn",), ("attn", "mlp"), ("attn", "mlp", "")])),
        reshard=reshard,
        reshard_after_backward=draw(st.booleans()),
        checkpoint=draw(st.booleans()),
        on_host=draw(st.booleans()),
        dim=draw(st.integers(0, 1)) if reshard != 2 else 0,
        replicate=draw(st.sampled_from([1, 2])),
        runtime=RuntimeKnobs(
            reduce_scatter_max_input_buffers=draw(st.integers(1, 2)),
            gradient_sync=sync,
            reduce_scatter_unused_params=sync is not GradientSync.LAST_MICRO_BATCH and draw(st.booleans()),
        ),
    )
    decisions = nested_decisions(request, knobs)
    assert not structural_problems(request, decisions)
    return Replay(
        request, decisions, FlatCosts(launch_ns=draw(st.sampled_from([0, 5])), durations=NESTED_DURATIONS)
    )


def live(replay: Replay) -> dict[Stream, int]:
    return {pool: replay.machine.live_bytes(pool) for pool in Stream}


@given(nested_replays())
@settings(max_examples=150, deadline=None)
def test_a_step_gives_back_all_but_state_and_gradients_under_every_knob(replay: Replay) -> None:
    replay.run()
    with_gradient = {name for group in replay.groups.values() for name in group.reduction.sharded_gradients}
    on_device = [p for unit in replay.units if not unit.is_on_host for p in unit.parameters]
    state = sum(parameter.stored_bytes for parameter in on_device)
    state += sum(8 * parameter.shard_elements for parameter in on_device if parameter.name in with_gradient)
    gradients = sum(parameter.stored_bytes for parameter in on_device if parameter.name in with_gradient)
    found = live(replay)
    assert found[Stream.COMPUTE] == state
    assert found[Stream.COPY_IN] == found[Stream.GATHER] == 0
    assert found[Stream.REDUCE] + found[Stream.ALL_REDUCE] == gradients


@given(nested_replays(st.integers(3, 4)))
@settings(max_examples=100, deadline=None)
def test_micro_batches_between_the_first_and_the_last_are_alike(replay: Replay) -> None:
    replay.allocate_persistent()
    replay.walk(is_last=False)
    seen = []
    for _ in range(2):
        replay.machine.pool_peaks.clear()
        before = live(replay)
        seen.append((replay.walk(is_last=False), dict(replay.machine.pool_peaks), before, live(replay)))
    assert seen[0] == seen[1]
