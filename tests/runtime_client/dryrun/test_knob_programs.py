"""What the recording shows of each further knob, against what FSDP2 documents: counts, places, sizes, order."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from planner.program.events import Phase, Stream
from planner.program.outline import Outline, OutlineKind, OutlineOperation, normalised
from runtime_client.dryrun import run_isolated

N = 3
ALL = ("", *(f"layers.{index}" for index in range(N)))
SMALL = ("small", {})
CASES = {
    "default": (*SMALL, {"mesh": (1, 8)}),
    "partial": (*SMALL, {"mesh": (1, 8), "reshard": 4}),
    "partial_hybrid": (*SMALL, {"mesh": (2, 8), "reshard": 2, "mixed": True}),
    "kept_after_backward": (*SMALL, {"num_micro_batches": 3, "kept_after_backward": ("layers.1", "")}),
    "last": (*SMALL, {"num_micro_batches": 3, "gradient_sync": "last_micro_batch"}),
    "last_mixed": (*SMALL, {"num_micro_batches": 3, "gradient_sync": "last_micro_batch", "mixed": True}),
    "all_reduce_last": (
        *SMALL,
        {"mesh": (2, 4), "num_micro_batches": 3, "gradient_sync": "all_reduce_on_last_micro_batch"},
    ),
    "all_reduce_last_alone": (
        *SMALL,
        {"mesh": (1, 8), "gradient_sync": "all_reduce_on_last_micro_batch"},
    ),
    "unused": ("unused_projection", {}, {"mesh": (1, 8), "reduce_scatter_unused_params": True}),
    "unused_off": ("unused_projection", {}, {"mesh": (1, 8)}),
    "separate_group": (*SMALL, {"mesh": (1, 8), "separate_reduce_scatter_group": True}),
    "post_optimizer_event": (*SMALL, {"mesh": (1, 8), "post_optimizer_event": True}),
    "host": (*SMALL, {"mesh": (1, 8), "on_host": ("layers.1", "")}),
    "host_hybrid": (*SMALL, {"mesh": (2, 4), "mixed": True, "on_host": ("layers.1",), "num_micro_batches": 2}),
    "host_alone": (*SMALL, {"mesh": (8, 1), "on_host": ("layers.1",)}),
    "dims": (
        *SMALL,
        {"mesh": (1, 8), "shard_dims": ("layers.1.attention.query.weight", "layers.1.feed_forward.up.weight")},
    ),
    "float16": (*SMALL, {"mesh": (1, 8), "reduce_dtype": "float16"}),
    "float16_hybrid": (*SMALL, {"mesh": (2, 4), "reduce_dtype": "float16"}),
    "float16_two": (*SMALL, {"mesh": (1, 2), "reduce_dtype": "float16"}),
    "float16_alone": (*SMALL, {"mesh": (8, 1), "reduce_dtype": "float16"}),
    "checkpointed": (*SMALL, {"mesh": (1, 8), "checkpointed": N}),
    "selective": (*SMALL, {"mesh": (1, 8), "checkpointed": N, "saved_ops": ("aten.mm.default",)}),
    "nested": (*SMALL, {"mesh": (1, 8), "inner": ("attention", "feed_forward")}),
    "nested_checkpointed": (*SMALL, {"mesh": (1, 8), "inner": ("attention",), "checkpointed": N}),
    "shared": ("shared_layer", {}, {"mesh": (1, 8), "num_blocks": 1}),
    "shared_kept": ("shared_layer", {}, {"mesh": (1, 8), "num_blocks": 1, "reshard": False}),
}
BLOCK = sum(-(-rows // 8) * 8 * columns for rows, columns in [(64, 64)] * 4 + [(128, 64)] * 2 + [(64, 128)]) + 128
"""Elements of a block; nothing needs padding at 8 ranks."""


@pytest.fixture(scope="module")
def programs(decide, job) -> dict[str, Outline]:
    jobs = [
        job("program", decide(knobs.pop("num_blocks", N), **knobs), function=function, arguments=arguments)
        for function, arguments, knobs in ((f, a, dict(k)) for f, a, k in CASES.values())
    ]
    return {name: normalised(program) for name, program in zip(CASES, run_isolated(jobs), strict=True)}


def of(program: Outline, kind: OutlineKind, unit: str | None = None) -> list[OutlineOperation]:
    return [o for o in program if o.kind is kind and unit in (None, o.unit)]


def by_micro_batch(program: Outline, kind: OutlineKind, unit: str | None = None) -> list[int]:
    counted = Counter(o.micro_batch for o in of(program, kind, unit))
    return [counted[index] for index in range(max(o.micro_batch for o in program) + 1)]


def before(program: Outline, operation: OutlineOperation) -> OutlineOperation:
    """What its stream was given just before."""
    place = program.index(operation)
    return next(o for o in reversed(program[:place]) if o.stream is operation.stream)


def waits(program: Outline, operation: OutlineOperation) -> list[OutlineOperation]:
    return [program[wait] for wait in operation.waits]


@pytest.mark.parametrize(
    ("name", "ranks", "gathered"), [("partial", (8, 4), 4 * BLOCK), ("partial_hybrid", (8, 2), 2 * BLOCK)]
)
def test_partial_resharding_copies_a_part_that_the_next_gather_reads(programs, name, ranks, gathered):
    program = programs[name]
    (reshard,) = of(program, OutlineKind.RESHARD, "layers.1")
    assert (reshard.stream, reshard.phase) == (Stream.COMPUTE, Phase.FORWARD)
    assert reshard.size_bytes == gathered // ranks[1]
    assert reshard.num_kernels == 9, "one copy for each parameter"
    assert before(program, reshard).kind is OutlineKind.KERNELS
    copied = [o.size_bytes for o in of(program, OutlineKind.COPY_IN, "layers.1")]
    assert copied == [gathered // ranks[0], gathered // ranks[1]]
    assert {o.size_bytes for o in of(program, OutlineKind.ALL_GATHER, "layers.1")} == {gathered}
    last = of(program, OutlineKind.RESHARD)[-1]
    again = of(program, OutlineKind.COPY_IN, last.unit)[-1]
    assert last in waits(program, again)
    assert of(program, OutlineKind.RESHARD, "") == []


def test_units_kept_after_backward_are_gathered_again_only_where_forward_reshards_them(programs):
    program = programs["kept_after_backward"]
    assert by_micro_batch(program, OutlineKind.ALL_GATHER, "layers.0") == [2, 2, 2]
    assert by_micro_batch(program, OutlineKind.ALL_GATHER, "layers.1") == [2, 1, 1]
    assert by_micro_batch(program, OutlineKind.ALL_GATHER, "") == [1, 0, 0]
    assert by_micro_batch(program, OutlineKind.REDUCE_SCATTER) == [N + 1] * 3


@pytest.mark.parametrize(("name", "accumulations"), [("last", [0, 0, 0]), ("last_mixed", [N + 1] * 3)])
def test_only_the_last_micro_batch_reduces(programs, name, accumulations):
    program = programs[name]
    assert by_micro_batch(program, OutlineKind.REDUCE_SCATTER) == [0, 0, N + 1]
    assert by_micro_batch(program, OutlineKind.ALL_GATHER) == [2 * N + 1] * 3
    assert by_micro_batch(program, OutlineKind.ACCUMULATE) == accumulations
    assert of(program, OutlineKind.POST_REDUCE) == [] or name == "last_mixed"


def test_gradients_of_another_type_are_kept_in_the_type_of_the_reduction(programs):
    kept = of(programs["last_mixed"], OutlineKind.ACCUMULATE, "layers.1")
    assert [o.size_bytes for o in kept] == [4 * BLOCK] * 3
    assert {(o.stream, o.phase, o.num_kernels) for o in kept} == {(Stream.COMPUTE, Phase.BACKWARD, 9)}
    assert of(programs["last_mixed"], OutlineKind.CHUNK_CAT, "layers.1")[0].micro_batch == 2


def test_partial_sums_wait_for_the_all_reduce_of_the_last_micro_batch(programs):
    program = programs["all_reduce_last"]
    assert by_micro_batch(program, OutlineKind.REDUCE_SCATTER) == [N + 1] * 3
    assert by_micro_batch(program, OutlineKind.ALL_REDUCE) == [0, 0, N + 1]
    sums = of(program, OutlineKind.POST_REDUCE)
    assert {o.stream for o in sums} == {Stream.REDUCE}
    assert by_micro_batch(program, OutlineKind.POST_REDUCE) == [0, N + 1, N + 1]
    reduced = of(program, OutlineKind.ALL_REDUCE, "layers.1")[0]
    assert waits(program, reduced) == [of(program, OutlineKind.POST_REDUCE, "layers.1")[-1]]


@pytest.mark.parametrize("name", ["all_reduce_last_alone", "separate_group", "post_optimizer_event"])
def test_knobs_that_change_no_operation_of_a_step(programs, name):
    assert programs[name] == programs["default"]


def test_unused_parameters_are_reduced_as_zeros(programs):
    (zeros,) = of(programs["unused"], OutlineKind.ACCUMULATE)
    assert (zeros.unit, zeros.size_bytes, zeros.num_kernels) == ("layers.2", 4 * 32 * 64, 1)
    for name, elements in (("unused", BLOCK + 32 * 64), ("unused_off", BLOCK)):
        assert of(programs[name], OutlineKind.REDUCE_SCATTER, "layers.2")[0].size_bytes == 4 * elements
    assert of(programs["unused_off"], OutlineKind.ACCUMULATE) == []


def test_shards_of_an_offloaded_unit_come_from_the_host_and_its_gradients_go_there(programs):
    program = programs["host"]
    copies = of(program, OutlineKind.HOST_TO_DEVICE)
    assert Counter(o.unit for o in copies) == {"layers.1": 2, "": 1}
    assert {(o.stream, o.size_bytes) for o in copies if o.unit} == {(Stream.COPY_IN, 4 * BLOCK // 8)}
    for copy_in in of(program, OutlineKind.COPY_IN, "layers.1"):
        assert before(program, copy_in).kind is OutlineKind.HOST_TO_DEVICE
    (offload,) = of(program, OutlineKind.OFFLOAD, "layers.1")
    assert (offload.stream, offload.size_bytes, offload.num_kernels) == (Stream.REDUCE, 4 * BLOCK // 8, 9)
    assert before(program, offload).kind is OutlineKind.REDUCE_SCATTER
    assert waits(program, program[-1]) == [of(program, OutlineKind.OFFLOAD, "")[0]]


def test_over_replicas_gradients_go_to_the_host_after_their_cast_and_add_up_there(programs):
    program = programs["host_hybrid"]
    offloads = of(program, OutlineKind.OFFLOAD)
    assert [(o.unit, o.micro_batch, o.stream) for o in offloads] == [
        ("layers.1", 0, Stream.ALL_REDUCE),
        ("layers.1", 1, Stream.ALL_REDUCE),
    ]
    assert by_micro_batch(program, OutlineKind.POST_REDUCE, "layers.0") == [0, 1]
    assert by_micro_batch(program, OutlineKind.POST_REDUCE, "layers.1") == [0, 0], "the host adds"


def test_with_a_single_shard_the_host_copies_come_with_the_copy_out(programs):
    """Parameter by parameter; the recording puts all host copies first."""
    program = programs["host_alone"]
    copies = of(program, OutlineKind.HOST_TO_DEVICE)
    assert {(o.unit, o.stream, o.size_bytes, o.num_kernels) for o in copies} == {
        ("layers.1", Stream.COMPUTE, 4 * BLOCK, 9)
    }
    for copy_out in of(program, OutlineKind.COPY_OUT, "layers.1"):
        assert before(program, copy_out) in copies
        assert (copy_out.size_bytes, copy_out.num_kernels) == (4 * BLOCK, 9)


def test_parameters_on_other_dimensions_are_copied_twice(programs):
    program = programs["dims"]
    for kind in (OutlineKind.COPY_OUT, OutlineKind.CHUNK_CAT):
        moved, plain = of(program, kind, "layers.1")[0], of(program, kind, "layers.0")[0]
        assert (moved.num_kernels, plain.num_kernels) == (3, 1)
        assert moved.size_bytes == plain.size_bytes == 4 * BLOCK
    assert [replaced(o) for o in program] == [replaced(o) for o in programs["default"]]


def replaced(operation: OutlineOperation) -> tuple[object, ...]:
    return operation.stream, operation.kind, operation.unit, operation.phase, operation.waits, operation.size_bytes


@pytest.mark.parametrize(
    ("name", "stream", "kernels"),
    [
        ("float16", Stream.REDUCE, 2),
        ("float16_hybrid", Stream.ALL_REDUCE, 2),
        ("float16_two", Stream.REDUCE, 1),
        ("float16_alone", Stream.ALL_REDUCE, 2),
    ],
)
def test_float16_is_divided_before_the_reduction_and_where_needed_after(programs, name, stream, kernels):
    program = programs[name]
    (divide,) = of(program, OutlineKind.DIVIDE, "layers.1")
    (chunk_cat,) = of(program, OutlineKind.CHUNK_CAT, "layers.1")
    (after,) = of(program, OutlineKind.POST_REDUCE, "layers.1")
    assert (divide.stream, divide.size_bytes) == (Stream.REDUCE, chunk_cat.size_bytes)
    assert waits(program, divide) == [chunk_cat]
    kind = OutlineKind.LOCAL_REDUCE if name == "float16_alone" else OutlineKind.REDUCE_SCATTER
    (reduction,) = of(program, kind, "layers.1")
    assert before(program, reduction) is divide
    assert reduction.waits == ()
    assert (after.stream, after.num_kernels) == (stream, kernels), "a division where it is not by 1, and a cast"


def test_selective_checkpointing_launches_fewer_kernels_again(programs):
    def again(name: str) -> int:
        return sum(o.num_kernels for o in programs[name] if o.phase is Phase.RECOMPUTE)

    assert again("checkpointed") - again("selective") == 6 * N, "all products but the last, which is not needed"
    assert again("selective") > 0


def test_units_inside_units_gather_and_reduce_on_their_own(programs):
    program = programs["nested"]
    assert len(of(program, OutlineKind.ALL_GATHER)) == 2 * 3 * N + 1
    order = [o.unit for o in of(program, OutlineKind.COPY_IN) if o.phase is Phase.FORWARD]
    assert order[1:4] == ["layers.0", "layers.0.attention", "layers.0.feed_forward"]
    reduced = [o.unit for o in of(program, OutlineKind.REDUCE_SCATTER)]
    assert reduced[:3] == ["layers.2.feed_forward", "layers.2.attention", "layers.2"]
    runs = [o.unit for o in of(program, OutlineKind.KERNELS) if o.phase is Phase.FORWARD]
    assert runs[1:6] == ["layers.0", "layers.0.attention", "layers.0", "layers.0.feed_forward", "layers.0"]


def test_a_recomputation_gathers_the_units_inside_as_roots_of_their_own(programs):
    program = programs["nested_checkpointed"]
    assert len(of(program, OutlineKind.ALL_GATHER)) == 2 * 2 * N + 1
    gathers = [o for o in of(program, OutlineKind.COPY_IN, "layers.2.attention") if o.phase is Phase.BACKWARD]
    outer = [o for o in of(program, OutlineKind.COPY_OUT, "layers.2") if o.phase is Phase.BACKWARD]
    assert len(gathers) == 1
    assert waits(program, gathers[0]) == outer, "what compute was given so far"
    recomputed = [o.unit for o in program if o.phase is Phase.RECOMPUTE]
    assert recomputed[:3] == ["layers.2", "layers.2.attention", "layers.2"]


@pytest.mark.parametrize(("name", "forward", "backward"), [("shared", 3, 3), ("shared_kept", 1, 2)])
def test_a_unit_that_runs_three_times_is_gathered_for_each_and_reduced_once(programs, name, forward, backward):
    """Autograd hands over the gradient of a parameter once, when all its uses have been through backward."""
    program = programs[name]
    gathers = Counter(o.phase for o in of(program, OutlineKind.ALL_GATHER, "layers.0"))
    assert gathers == {Phase.FORWARD: forward, Phase.BACKWARD: backward}
    assert len(of(program, OutlineKind.REDUCE_SCATTER, "layers.0")) == 1
    assert [o.unit for o in of(program, OutlineKind.REDUCE_SCATTER)] == ["layers.0", ""]


def test_edges_never_point_forwards_or_into_their_own_stream(programs):
    for program in programs.values():
        for index, operation in enumerate(program):
            assert all(wait < index and program[wait].stream != operation.stream for wait in operation.waits)


UNRELATED_WORK = """
import sys
import torch
from planner.program.edges import resolve_edges
from runtime_client.dryrun import recording_device
from runtime_client.dryrun.job import DryRunJob, _resolve
from runtime_client.dryrun.observer import Observer
from runtime_client.dryrun.rehearsal import rehearse

job = DryRunJob.model_validate_json(sys.stdin.read())
log = recording_device.DeviceLog()
with rehearse(_resolve(job.build), job.decisions, sequence=job.sequence, optimizer_groups=()) as rehearsal:
    rehearsal.micro_batch(0)
    rehearsal.model.zero_grad(set_to_none=True)
    rehearsal.optimizer_step()
    observer = Observer(job.decisions.units, log)
    with recording_device.logging_to(log), observer:
        torch.ones(8) + 1
        rehearsal.micro_batch(0)
print(observer.observations[1].kind, resolve_edges(log.entries)[1])
"""


@pytest.mark.parametrize(("uses_event", "waited"), [(False, "(0,)"), (True, "()")])
def test_gathers_wait_for_the_optimizer_alone_where_its_event_is_known(decide, job, uses_event, waited):
    """Work that is launched between the optimizer and the next forward holds gathers up otherwise."""
    finished = subprocess.run(
        [sys.executable, "-c", UNRELATED_WORK],
        input=job("program", decide(N, post_optimizer_event=uses_event)).model_dump_json(),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert finished.stdout == f"all_gather_copy_in {waited}\n", finished.stderr[-2000:]
