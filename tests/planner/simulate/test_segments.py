"""What the caching allocator holds for a program, by hand and against the bytes that are allocated."""

import pytest

from planner.program.events import Allocate, OperationKind, Stream
from planner.schema import ShardwrightError
from planner.simulate import replay
from planner.simulate.allocator import MIB
from planner.simulate.predict import program_of
from planner.simulate.segments import Tensors, segments_of
from planner.simulate.tensors import tensors_of
from tests.planner.random_knobs import random_case
from tests.planner.simulate.programs import allocate, free, operation, program, touch

FORWARD = operation(OperationKind.FORWARD, 1, owner="block")
COMPUTE = Stream.COMPUTE


def test_each_pool_has_its_segments():
    made = program(
        allocate("state", 30 * MIB, "parameters"), allocate("small", 100, "gather_buffers", stream=Stream.REDUCE)
    )
    assert segments_of(made) == {COMPUTE: 30 * MIB, Stream.REDUCE: 2 * MIB}


def test_a_buffer_of_many_tensors_is_rounded_tensor_by_tensor():
    made = program(allocate("state", 6_000, "parameters"))
    # Twelve kibibytes fit a small segment; two large tensors and a small one need one of each kind.
    assert segments_of(made, Tensors(buffers={"state": [1_000] * 6})) == {COMPUTE: 2 * MIB}
    large = program(allocate("state", 50 * MIB, "parameters"))
    assert segments_of(large) == {COMPUTE: 50 * MIB}
    cut = Tensors(buffers={"state": [25 * MIB - 512, 25 * MIB, 512]})
    assert segments_of(large, cut) == {COMPUTE: (26 + 26 + 2) * MIB}


def test_sizes_that_do_not_add_up_are_not_believed():
    made = program(allocate("state", 50 * MIB, "parameters"))
    assert segments_of(made, Tensors(buffers={"state": [25 * MIB]})) == {COMPUTE: 50 * MIB}


def test_what_a_call_keeps_is_made_while_it_runs():
    # The touch makes the kept tensor beside the temporary, whose hole of 40 the next call finds whole.
    made = program(
        touch(activations=20 * MIB, transients=40 * MIB),
        FORWARD,
        allocate("K0", 20 * MIB, "activations"),
        touch(transients=40 * MIB),
        FORWARD,
    )
    assert segments_of(made, num_steps=1) == {COMPUTE: 60 * MIB}
    # One that keeps 20 takes them from the hole, and needs another 40.
    more = program(*made.events, touch(activations=20 * MIB, transients=40 * MIB), FORWARD)
    assert segments_of(more, num_steps=1) == {COMPUTE: 100 * MIB}


def test_backward_finds_what_forward_kept():
    made = program(
        allocate("K0", 30 * MIB, "activations"),
        allocate("other", 30 * MIB, "parameters"),
        FORWARD,
        free("K0"),
        touch(activations=30 * MIB, transients=10 * MIB),
        operation(OperationKind.BACKWARD, 1, owner="block"),
    )
    assert segments_of(made, num_steps=1) == {COMPUTE: 70 * MIB}


def test_temporaries_are_cut_to_the_largest_tensor_of_the_call():
    made = program(
        allocate("K0", 22 * MIB, "activations"),
        allocate("K1", 22 * MIB, "activations"),
        FORWARD,
        free("K0"),
        free("K1"),
        FORWARD,
        allocate("other", 2, "buffers"),
        touch(transients=44 * MIB),
        FORWARD,
    )
    assert segments_of(made, num_steps=1) == {COMPUTE: (44 + 44 + 2) * MIB}
    assert segments_of(made, Tensors(largest={"block": 22 * MIB}), num_steps=1) == {COMPUTE: (44 + 2) * MIB}


def test_optimizer_state_comes_with_the_first_step():
    # In the first step the temporary is made before the state, which then takes its place.
    made = program(
        allocate("parameters", 20 * MIB, "parameters"),
        allocate("optimizer", 40 * MIB, "optimizer"),
        touch(transients=40 * MIB),
        FORWARD,
        touch("optimizer step", optimizer=0),
    )
    assert segments_of(made, num_steps=1) == {COMPUTE: 60 * MIB}
    assert segments_of(made, num_steps=2) == segments_of(made, num_steps=5) == {COMPUTE: 100 * MIB}


def cases():
    for seed in range(120):
        request, decisions = random_case(seed)
        try:
            yield seed, program_of(request, decisions)
        except ShardwrightError:
            continue


def test_tensors_are_those_of_the_buffers_of_a_program():
    # Each buffer that is cut adds up, so that none falls back to one tensor: names are those of the program.
    cut = 0
    for seed, built in cases():
        tensors = tensors_of(built.inputs, built.knobs, [built.inputs.optimizer_bytes])
        partial = {f"C{name[1:]}" for name in tensors.buffers if name.startswith("F")}
        for event in (event for made, _ in built.programs for event in made.events if isinstance(event, Allocate)):
            sizes = tensors.buffers.get(event.buffer)
            # A part that is gathered again is cast as one tensor.
            if sizes is not None and event.buffer not in partial:
                cut += len(sizes) > 1
                assert sum(sizes) == event.size_bytes, (seed, event)
    assert cut > 500


def test_segments_hold_at_least_what_is_allocated():
    compared = 0
    for seed, built in cases():
        tensors = tensors_of(built.inputs, built.knobs, [built.inputs.optimizer_bytes])
        for made, _ in built.programs:
            pools = replay(made).pools_bytes
            for num_steps in (1, 3):
                held = segments_of(made, tensors, num_steps=num_steps)
                first = {**pools, COMPUTE: pools[COMPUTE] - built.inputs.optimizer_bytes}
                for stream, size in (first if num_steps == 1 else pools).items():
                    assert held.get(stream, 0) >= size, (seed, stream)
                    compared += 1
    assert compared > 500


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_nothing_is_lost_on_multiples_that_are_never_freed(num_steps):
    made = program(
        allocate("parameters", 30 * MIB, "parameters"),
        allocate("buffers", 14 * MIB, "buffers"),
        allocate("gathered", 18 * MIB, "gather_buffers", stream=Stream.COPY_IN),
    )
    assert segments_of(made, num_steps=num_steps) == replay(made).pools_bytes
