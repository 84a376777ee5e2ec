"""Laws that hold for every sound set of decisions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.check.machine import Stream
from planner.check.step import Replay
from planner.schema import RuntimeKnobs, UnitPlan
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

NUM_BLOCKS = 4
BLOCK = CallSpec(
    shapes=((5, 4), (3,)), saved=40, forward_live=(60,), backward_live=((70, 1),), full_saved=4, kernels=(2, 3, 1)
)
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
