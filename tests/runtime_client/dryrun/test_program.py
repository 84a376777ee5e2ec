from collections import Counter
from itertools import chain

import pytest

from planner.program.events import Phase, Stream
from planner.program.outline import OutlineKind, OutlineOperation
from runtime_client.dryrun import run_isolated

N = 5
CASES = {
    "default": {},
    "keep": {"reshard": False},
    "root_resharded": {"root_reshard": True},
    "hybrid": {"mesh": (8, 8), "mixed": True},
    "replicated": {"mesh": (64, 1)},
    "accumulating": {"num_micro_batches": 2},
    "last_only": {"num_micro_batches": 3, "gradient_sync": "last_micro_batch"},
    "two_buffers": {"reduce_scatter_max_input_buffers": 2},
    "checkpointed": {"checkpointed": N},
    "grouped": {"grouped": True},
    "last_unit_and_root_gather": {"mixed": True, "grouped": True, "root_reshard": True},
    "output_cast": {"mixed": True, "grouped": True, "root_reshard": True, "output_dtype": "float32"},
    **{f"prefetch_{depth}": {"prefetch": depth} for depth in range(4)},
}

Program = tuple[OutlineOperation, ...]


@pytest.fixture(scope="module")
def programs(decide, job) -> dict[str, Program]:
    jobs = [job("program", decide(N, **knobs), arguments={"num_blocks": N}) for knobs in CASES.values()]
    return dict(zip(CASES, run_isolated(jobs), strict=True))


def count(program: Program) -> Counter[OutlineKind]:
    return Counter(operation.kind for operation in program)


def find(program: Program, kind: OutlineKind, unit: str, phase: Phase) -> int:
    return next(
        index
        for index, operation in enumerate(program)
        if (operation.kind, operation.unit, operation.phase) == (kind, unit, phase)
    )


@pytest.mark.parametrize(
    ("name", "gathers", "reductions"),
    [
        ("default", 2 * N + 1, N + 1),
        ("keep", N + 1, N + 1),
        ("root_resharded", 2 * N + 2, N + 1),
        ("hybrid", 2 * N + 1, N + 1),
        ("accumulating", 2 * (2 * N + 1), 2 * (N + 1)),
        ("last_only", 3 * (2 * N + 1), N + 1),
        ("grouped", 2 * N + 3, N + 2),
        ("replicated", 0, 0),
    ],
)
def test_counts_of_collectives(programs, name, gathers, reductions):
    counted = count(programs[name])
    assert counted[OutlineKind.ALL_GATHER] == gathers
    assert counted[OutlineKind.REDUCE_SCATTER] == reductions


def test_all_reduces_only_with_replicas_and_on_their_own_stream(programs):
    assert count(programs["default"])[OutlineKind.ALL_REDUCE] == 0
    for name in ("hybrid", "replicated"):
        reductions = [o for o in programs[name] if o.kind is OutlineKind.ALL_REDUCE]
        assert len(reductions) == N + 1
        assert {o.stream for o in reductions} == {Stream.ALL_REDUCE}


def test_a_shard_degree_of_one_copies_instead_of_communicating(programs):
    counted = count(programs["replicated"])
    assert counted[OutlineKind.COPY_IN] == 0
    assert counted[OutlineKind.COPY_OUT] == 2 * N + 1
    assert counted[OutlineKind.LOCAL_REDUCE] == N + 1


def most_live(program: Program, phase: Phase) -> int:
    """Most blocks that are gathered, or being gathered, at once."""
    blocks = [f"layers.{index}" for index in range(N)]
    lives = []
    for block in blocks:
        own = [
            index for index, operation in enumerate(program) if (operation.unit, operation.phase) == (block, phase)
        ]
        last = OutlineKind.KERNELS if phase is Phase.FORWARD else OutlineKind.CHUNK_CAT
        lives.append((own[0], next(index for index in reversed(own) if program[index].kind is last)))
    return max(sum(first <= moment <= last for first, last in lives) for moment in chain.from_iterable(lives))


@pytest.mark.parametrize(("depth", "forward", "backward"), [(0, 1, 2), (1, 2, 2), (2, 3, 3), (3, 4, 4)])
def test_gathered_blocks_alive_at_each_prefetch_depth(programs, depth, forward, backward):
    program = programs[f"prefetch_{depth}"]
    assert most_live(program, Phase.FORWARD) == forward
    assert most_live(program, Phase.BACKWARD) == backward


def test_a_gather_in_forward_waits_for_the_copy_out_two_units_before(programs):
    program = programs["default"]
    copy_in = find(program, OutlineKind.COPY_IN, "layers.2", Phase.FORWARD)
    assert program[copy_in].waits == (find(program, OutlineKind.COPY_OUT, "layers.0", Phase.FORWARD),)


def test_copy_out_waits_for_its_gather_and_kernels_follow_on_the_same_stream(programs):
    program = programs["default"]
    copy_out = find(program, OutlineKind.COPY_OUT, "layers.3", Phase.FORWARD)
    assert program[copy_out].waits == (find(program, OutlineKind.ALL_GATHER, "layers.3", Phase.FORWARD),)
    assert program[copy_out + 1].kind is OutlineKind.KERNELS
    assert program[copy_out + 1].waits == ()


@pytest.mark.parametrize(("name", "distance"), [("default", 1), ("two_buffers", 2)])
def test_chunk_cat_waits_until_a_reduce_buffer_is_free(programs, name, distance):
    program = programs[name]
    chunk_cat = find(program, OutlineKind.CHUNK_CAT, "layers.1", Phase.BACKWARD)
    before = find(program, OutlineKind.REDUCE_SCATTER, f"layers.{1 + distance}", Phase.BACKWARD)
    assert program[chunk_cat].waits == (before,)


def test_the_end_waits_for_the_last_reduction(programs):
    program = programs["default"]
    assert program[-1].kind is OutlineKind.END
    assert program[-1].waits == (find(program, OutlineKind.REDUCE_SCATTER, "", Phase.BACKWARD),)


def test_recomputation_runs_in_the_pass_of_its_unit_without_a_gather_of_its_own(programs):
    program = programs["checkpointed"]
    recomputed = [o for o in program if o.phase is Phase.RECOMPUTE]
    assert {o.unit for o in recomputed} == {f"layers.{index}" for index in range(N)}
    assert {o.kind for o in recomputed} == {OutlineKind.KERNELS}
    assert count(program)[OutlineKind.ALL_GATHER] == 2 * N + 1


def test_a_grouped_unit_goes_by_its_first_module(programs):
    units = {operation.unit for operation in programs["grouped"]}
    assert units == {"", "norm", *(f"layers.{index}" for index in range(N))}


def test_a_cast_of_the_output_changes_no_order(programs):
    """FSDP2 registers the root's hook before it casts, so the last unit still comes first in backward.

    Kernels are as many too: the loss finds its logits in float32 and need not cast them.
    """
    cast = programs["output_cast"]
    assert cast == programs["last_unit_and_root_gather"]
    assert find(cast, OutlineKind.COPY_IN, "norm", Phase.BACKWARD) < find(
        cast, OutlineKind.COPY_IN, "", Phase.BACKWARD
    )


def test_additions_to_accumulated_gradients_follow_the_reduction(programs):
    program = programs["accumulating"]
    added = [o for o in program if o.kind is OutlineKind.POST_REDUCE]
    assert {o.micro_batch for o in added} == {1}
    assert {o.stream for o in added} == {Stream.REDUCE}


def test_sizes_are_padded_and_in_the_communicated_dtype(programs):
    program = programs["hybrid"]
    elements = 8 * sum(-(-rows // 8) * columns for rows, columns in [(64, 64)] * 4 + [(128, 64)] * 2 + [(64, 128)])
    elements += 2 * 64
    gather = program[find(program, OutlineKind.ALL_GATHER, "layers.0", Phase.FORWARD)]
    scatter = program[find(program, OutlineKind.REDUCE_SCATTER, "layers.0", Phase.BACKWARD)]
    reduce = program[find(program, OutlineKind.ALL_REDUCE, "layers.0", Phase.BACKWARD)]
    assert (gather.size_bytes, scatter.size_bytes, reduce.size_bytes) == (2 * elements, 4 * elements, elements // 2)


def test_edges_never_point_forwards_or_into_their_own_stream(programs):
    for program in programs.values():
        for index, operation in enumerate(program):
            assert all(wait < index and program[wait].stream != operation.stream for wait in operation.waits)
