"""Clocks, stalls and use of streams, worked out by hand."""

import pytest

from planner.program.events import Link, OperationKind, Stream
from planner.simulate import replay
from planner.simulate.replay import Use
from tests.planner.simulate.programs import (
    COMPUTE,
    COPY_IN,
    GATHER,
    REDUCE,
    allocate,
    free,
    host_wait,
    operation,
    program,
    touch,
    wait,
)

Kind = OperationKind


def stalls(run) -> list[tuple[str, str | None, int, int]]:
    return [(stall.before, stall.cause, stall.start_ns, stall.duration_ns) for stall in run.stalls]


def test_a_gather_is_exposed_until_it_ends():
    run = replay(
        program(
            operation(Kind.COPY_IN, 2, stream=COPY_IN),
            operation(Kind.ALL_GATHER, 40, stream=GATHER, link=Link.SHARD, waits=(0,)),
            operation(Kind.COPY_OUT, 3, waits=(1,)),
            operation(Kind.FORWARD, 100, owner="block"),
        )
    )
    assert run.micro_batch_ns == 2 + 40 + 3 + 100
    assert stalls(run) == [("u", Kind.ALL_GATHER, 0, 42)]
    assert run.uses() == {
        "compute": Use(busy_ns=103, idle_ns=42),
        "copy_in": Use(busy_ns=2, idle_ns=143),
        "gather": Use(busy_ns=40, idle_ns=105),
        "reduce": Use(busy_ns=0, idle_ns=145),
        "all_reduce": Use(busy_ns=0, idle_ns=145),
        "offload": Use(busy_ns=0, idle_ns=145),
        "cpu": Use(busy_ns=0, idle_ns=145),
        "link shard": Use(busy_ns=40, idle_ns=105),
    }
    assert (run.count(Kind.ALL_GATHER), run.busy_ns(Kind.ALL_GATHER)) == (1, 40)
    assert (run.count(Kind.OFFLOAD), run.busy_ns(Kind.OFFLOAD)) == (0, 0)


@pytest.mark.parametrize(
    ("second", "expected_ns"), [(Link.SHARD, 70), (Link.REDUCE, 40)], ids=["one communicator", "its own"]
)
def test_operations_on_one_link_run_one_at_a_time(second, expected_ns):
    run = replay(
        program(
            operation(Kind.ALL_GATHER, 40, stream=GATHER, link=Link.SHARD),
            operation(Kind.REDUCE_SCATTER, 30, stream=REDUCE, link=second),
            wait(COMPUTE, 0),
            wait(COMPUTE, 1),
        )
    )
    assert run.micro_batch_ns == expected_ns
    assert [span.end_ns for span in run.spans] == [40, 70 if second is Link.SHARD else 30]


def test_the_cpu_issues_one_kernel_after_the_other():
    # Three launches of 10: the kernels of the forward end at 30 at the earliest, those of the next at 50.
    run = replay(
        program(
            operation(Kind.FORWARD, 5, owner="a", launches=3),
            operation(Kind.FORWARD, 100, owner="b", launches=2),
            launch_ns=10,
        )
    )
    assert [(span.issue_ns, span.start_ns, span.end_ns) for span in run.spans] == [(0, 10, 30), (30, 40, 140)]
    assert stalls(run) == [("a", None, 0, 10), ("a", None, 15, 15), ("b", None, 30, 10)]
    assert run.uses()["cpu"] == Use(busy_ns=50, idle_ns=90)


def test_a_stall_after_a_host_wait_is_blamed_on_what_the_host_waited_for():
    # The host waits for a copy that ends at 200, and then needs 10 to issue the next kernel.
    run = replay(
        program(
            operation(Kind.FORWARD, 50, owner="a"),
            operation(Kind.OFFLOAD, 180, stream=REDUCE, host_waits=True),
            operation(Kind.FORWARD, 30, owner="b"),
            launch_ns=10,
        )
    )
    assert run.micro_batch_ns == 240
    assert stalls(run) == [("a", None, 0, 10), ("b", Kind.OFFLOAD, 60, 140), ("b", None, 200, 10)]
    (waited,) = run.timing.host_waits
    assert (waited.event, waited.start_ns, waited.end_ns) == (1, 20, 200)


def test_a_host_wait_at_the_end_of_backward_counts():
    run = replay(
        program(
            operation(Kind.BACKWARD, 50),
            operation(Kind.OFFLOAD, 80, stream=REDUCE, waits=(0,)),
            host_wait(1),
            host_wait(0),
        )
    )
    assert run.micro_batch_ns == 130
    assert stalls(run) == [("end of backward", Kind.OFFLOAD, 50, 80)]


def test_waiting_for_what_has_ended_costs_nothing():
    # `.item()` on a tensor of the compute stream itself: nothing but the launch that follows is exposed.
    run = replay(
        program(
            operation(Kind.FORWARD, 50, host_waits=True, owner="a"),
            operation(Kind.FORWARD, 50, owner="b"),
            launch_ns=10,
        )
    )
    assert stalls(run) == [("a", None, 0, 10), ("b", None, 60, 10)]


def test_a_wait_for_an_operation_that_did_not_run_is_void():
    run = replay(program(wait(COMPUTE, 5), operation(Kind.FORWARD, 7), host_wait(9)))
    assert (run.micro_batch_ns, run.stalls) == (7, ())


def test_memory_of_pools_and_of_their_sum():
    run = replay(
        program(
            allocate("state", 100, "parameters"),
            allocate("gathered", 50, "gather_buffers", stream=COPY_IN),
            free("gathered"),
            allocate("kept", 30, "activations"),
            touch("in the call", activations=5, transients=20),
            free("nothing of that name"),
            allocate("again", 10, "gather_buffers", stream=COPY_IN),
            touch("optimizer step", optimizer=1),
        ),
        points=True,
    )
    assert run.pools_bytes == {Stream.COMPUTE: 155, Stream.COPY_IN: 50}
    assert (run.reserved_bytes, run.allocated_bytes) == (205, 155)
    assert (run.peak.moment, run.peak.total_bytes) == ("in the call", 155)
    assert run.peak.by_category_bytes == {"parameters": 100, "activations": 35, "transients": 20}
    assert run.peak == run.points[3]
    assert [point.total_bytes for point in run.points] == [100, 150, 130, 155, 140, 141]
    assert (run.peaks.micro_batch_bytes, run.peaks.optimizer_bytes) == (155, 141)


def test_an_empty_program_takes_no_time_and_no_memory():
    run = replay(program())
    assert (run.micro_batch_ns, run.allocated_bytes, run.pools_bytes, run.spans) == (0, 0, {}, ())
    assert run.peak.total_bytes == 0


def test_a_buffer_is_not_allocated_twice():
    with pytest.raises(AssertionError, match="kept is alive already"):
        replay(program(allocate("kept", 1, "activations"), allocate("kept", 1, "activations")))
