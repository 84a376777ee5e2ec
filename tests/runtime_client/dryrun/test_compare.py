"""What counts as a difference between two outlines, and how it is said."""

from dataclasses import replace

import pytest

from planner.program.events import Phase, Stream
from planner.program.outline import OutlineKind, OutlineOperation
from runtime_client.dryrun.compare import DifferenceKind, MemoryComparison, compare


def op(kind, unit, stream, phase=Phase.BACKWARD, waits=(), size=0, kernels=1) -> OutlineOperation:
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


STEP = (
    op(OutlineKind.COPY_IN, "a", Stream.COPY_IN, size=8),
    op(OutlineKind.ALL_GATHER, "a", Stream.GATHER, waits=(0,), size=64),
    op(OutlineKind.COPY_OUT, "a", Stream.COMPUTE, waits=(1,), size=64),
    op(OutlineKind.KERNELS, "a", Stream.COMPUTE, kernels=9),
    op(OutlineKind.CHUNK_CAT, "a", Stream.COMPUTE, size=64),
    op(OutlineKind.REDUCE_SCATTER, "a", Stream.REDUCE, waits=(4,), size=64),
    op(OutlineKind.KERNELS, "b", Stream.COMPUTE, kernels=9),
)


def changed(index: int, **fields) -> tuple[OutlineOperation, ...]:
    return (*STEP[:index], replace(STEP[index], **fields), *STEP[index + 1 :])


def kinds(predicted, recorded) -> list[DifferenceKind]:
    return [difference.kind for difference in compare(predicted, recorded).differences]


def test_an_outline_equals_itself_whatever_the_number_of_kernels():
    found = compare(STEP, changed(3, num_kernels=30))
    assert found.equal
    assert found.num_edges == (3, 3)
    assert [(tally.kind.value, tally.num_operations) for tally in found.tallies][:2] == [
        ("all_gather_copy_out", (1, 1)),
        ("chunk_cat", (1, 1)),
    ]


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (STEP[:-1], [DifferenceKind.NOT_RECORDED]),
        ((*STEP, op(OutlineKind.CHUNK_CAT, "b", Stream.COMPUTE)), [DifferenceKind.NOT_PREDICTED]),
        (changed(1, size_bytes=63), [DifferenceKind.SIZE]),
        (changed(5, waits=()), [DifferenceKind.EDGE_NOT_RECORDED]),
        (changed(6, waits=(5,)), [DifferenceKind.EDGE_NOT_PREDICTED]),
        ((*STEP[:5], STEP[6], STEP[5]), [DifferenceKind.ORDER]),
        (changed(5, stream=Stream.ALL_REDUCE), [DifferenceKind.NOT_RECORDED, DifferenceKind.NOT_PREDICTED]),
    ],
)
def test_every_kind_of_difference_is_found(recorded, expected):
    assert kinds(STEP, recorded) == expected


def test_differences_are_said_in_words():
    (difference,) = compare(STEP, changed(1, size_bytes=63)).differences
    assert str(difference) == (
        "other size: all_gather of a on gather in backward of micro-batch 0: 64 predicted, 63 recorded"
    )
    (difference,) = compare(STEP, changed(5, waits=())).differences
    assert str(difference) == (
        "edge predicted but not recorded: reduce_scatter of a on reduce in backward of micro-batch 0 waits for "
        "chunk_cat of a on compute in backward of micro-batch 0"
    )


@pytest.mark.parametrize(
    ("unit", "kernels", "is_equal"), [("", 1, True), ("around", 1, True), ("a", 1, False), ("", 2, False)]
)
def test_one_kernel_of_another_unit_after_a_reduction_counts_as_a_sum_of_gradients(unit, kernels, is_equal):
    extra = op(OutlineKind.KERNELS, unit, Stream.COMPUTE, kernels=kernels)
    found = compare(STEP, (*STEP[:6], extra, *STEP[6:]))
    assert found.equal is is_equal
    assert found.num_gradient_sums == is_equal
    assert not compare((*STEP[:6], extra, *STEP[6:]), STEP).equal


@pytest.mark.parametrize(
    ("predicted", "is_close"), [(10**9, True), (1004 * 10**6, True), (1006 * 10**6, False), (998 * 10**6, False)]
)
def test_memory_may_be_half_a_percent_too_much_and_hardly_too_little(predicted, is_close):
    compared = MemoryComparison("peak", predicted, 10**9)
    assert compared.is_close is is_close
    assert compared.error == pytest.approx(predicted / 10**9 - 1)
