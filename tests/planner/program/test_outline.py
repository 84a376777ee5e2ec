"""Drawing outlines of programs, and their normal form."""

from planner.program.events import Operation, OperationKind, Phase, Program, Stream, Wait
from planner.program.outline import OutlineKind, OutlineOperation, normalised, outline, without
from planner.program.units import Partition, Unit
from tests.planner.random_requests import random_request

COMPUTE, GATHER = Stream.COMPUTE, Stream.GATHER


def op(kind, unit="", phase=Phase.FORWARD, *, stream=COMPUTE, waits=(), kernels=1, size=0) -> OutlineOperation:
    return OutlineOperation(
        stream=stream,
        kind=kind,
        unit=unit,
        phase=phase,
        micro_batch=0,
        waits=waits,
        size_bytes=size,
        num_kernels=kernels,
    )


def shape(operations) -> list[tuple[str, str, str, int, tuple[int, ...]]]:
    return [(o.kind.value, o.unit, o.phase.value, o.num_kernels, o.waits) for o in operations]


def test_parts_of_a_run_become_one_and_edges_to_them_lead_to_it():
    normal = normalised(
        [
            op(OutlineKind.KERNELS, "a", kernels=3),
            op(OutlineKind.ALL_GATHER, "b", stream=GATHER, waits=(0,)),
            op(OutlineKind.KERNELS, "a", kernels=4),
            op(OutlineKind.ALL_GATHER, "c", stream=GATHER, waits=(2,)),
        ]
    )
    assert shape(normal) == [
        ("kernels", "a", "forward", 7, ()),
        ("all_gather", "b", "forward", 1, (0,)),
        ("all_gather", "c", "forward", 1, ()),
    ]


def test_a_part_that_waits_starts_a_run():
    operations = [
        op(OutlineKind.ALL_GATHER, "a", stream=GATHER),
        op(OutlineKind.KERNELS, "a"),
        op(OutlineKind.KERNELS, "a", waits=(0,)),
    ]
    assert normalised(operations) == tuple(operations)


def test_the_cast_of_inputs_comes_after_the_copy_out_of_the_root():
    normal = normalised(
        [
            op(OutlineKind.KERNELS, kernels=1),
            op(OutlineKind.ALL_GATHER, stream=GATHER),
            op(OutlineKind.COPY_OUT, waits=(1,)),
            op(OutlineKind.KERNELS, kernels=5),
        ]
    )
    assert shape(normal) == [
        ("all_gather", "", "forward", 1, ()),
        ("all_gather_copy_out", "", "forward", 1, (0,)),
        ("kernels", "", "forward", 6, ()),
    ]


def test_the_cast_of_inputs_waits_for_a_root_that_is_gathered_in_place():
    recorded = [
        op(OutlineKind.KERNELS, kernels=1),
        op(OutlineKind.ALL_GATHER, stream=GATHER),
        op(OutlineKind.KERNELS, kernels=5, waits=(1,)),
    ]
    assert shape(normalised(recorded)) == [
        ("all_gather", "", "forward", 1, ()),
        ("kernels", "", "forward", 6, (0,)),
    ]
    block = [op(OutlineKind.ALL_GATHER, "a", stream=GATHER), op(OutlineKind.KERNELS, "a", waits=(2,))]
    later = [op(OutlineKind.COPY_IN, "b", stream=Stream.COPY_IN, waits=(0, 1))]
    assert shape(normalised([*recorded[:2], *block, *later])) == [
        ("all_gather", "", "forward", 1, ()),
        ("all_gather", "a", "forward", 1, ()),
        ("kernels", "", "forward", 1, (0,)),
        ("kernels", "a", "forward", 1, (1,)),
        ("all_gather_copy_in", "b", "forward", 1, (0,)),
    ]


def test_a_mark_is_no_operation_but_what_its_stream_has_reached():
    program = Program(
        events=(
            event(OperationKind.ALL_GATHER, GATHER),
            event(OperationKind.FORWARD, COMPUTE),
            event(OperationKind.MARK, COMPUTE, waits=(0,)),
            event(OperationKind.FORWARD, COMPUTE),
            Wait(stream=Stream.COPY_IN, operation=2),
            event(OperationKind.COPY_IN, Stream.COPY_IN),
        ),
        launch_ns=0,
    )
    drawn = outline([program], root_alone())
    assert [(o.kind.value, o.waits) for o in drawn] == [
        ("all_gather", ()),
        ("kernels", ()),
        ("kernels", (0,)),
        ("all_gather_copy_in", (0, 1)),
        ("end", ()),
    ]


def test_a_short_start_of_backward_comes_after_the_recomputation_and_a_long_one_does_not():
    def backward(kernels: int):
        return [
            op(OutlineKind.KERNELS, "a", Phase.BACKWARD, kernels=kernels),
            op(OutlineKind.KERNELS, "a", Phase.RECOMPUTE, kernels=10),
            op(OutlineKind.KERNELS, "a", Phase.BACKWARD, kernels=20),
        ]

    assert [o.num_kernels for o in normalised(backward(2))] == [10, 22]
    assert [o.num_kernels for o in normalised(backward(12))] == [12, 10, 20]


def test_the_normal_form_is_its_own():
    operations = [
        op(OutlineKind.KERNELS, kernels=1),
        op(OutlineKind.COPY_OUT),
        op(OutlineKind.KERNELS, "a", Phase.BACKWARD),
        op(OutlineKind.KERNELS, "a", Phase.RECOMPUTE),
        op(OutlineKind.ALL_GATHER, "b", stream=GATHER, waits=(3,)),
        op(OutlineKind.KERNELS, "a", Phase.BACKWARD),
    ]
    once = normalised(operations)
    assert normalised(once) == once


def test_leaving_out_an_operation_moves_the_edges_of_the_others():
    operations = [
        op(OutlineKind.KERNELS),
        op(OutlineKind.COPY_OUT, "a"),
        op(OutlineKind.ALL_GATHER, "b", stream=GATHER, waits=(1,)),
    ]
    assert [o.waits for o in without(operations, {0})] == [(), (0,)]


def event(kind, stream, *, waits=()) -> Operation:
    return Operation(
        kind=kind, owner="", unit=0, phase=Phase.FORWARD, stream=stream, duration_ns=1, waits=waits, size_bytes=8
    )


def root_alone() -> Partition:
    return Partition(
        model=random_request(0).model,
        units=(Unit(modules=("",), parameters=()),),
        unit_of_call=(),
        passes=(),
        with_gradient=frozenset(),
    )


def test_gathers_of_a_later_micro_batch_wait_for_the_end_of_the_one_before():
    program = Program(
        events=(
            event(OperationKind.COPY_IN, Stream.COPY_IN),
            event(OperationKind.ALL_GATHER, GATHER, waits=(0,)),
            event(OperationKind.COPY_OUT, COMPUTE, waits=(1,)),
            Wait(stream=Stream.COPY_IN, operation=2),
            event(OperationKind.FORWARD, COMPUTE),
        ),
        launch_ns=0,
    )
    drawn = outline([program, program], root_alone())
    assert [(o.kind.value, o.micro_batch, o.waits) for o in drawn] == [
        ("all_gather_copy_in", 0, ()),
        ("all_gather", 0, (0,)),
        ("all_gather_copy_out", 0, (1,)),
        ("kernels", 0, ()),
        ("end", 0, ()),
        ("all_gather_copy_in", 1, (4,)),
        ("all_gather", 1, (5,)),
        ("all_gather_copy_out", 1, (6,)),
        ("kernels", 1, ()),
        ("end", 1, ()),
    ]
