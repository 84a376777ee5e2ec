"""A large vocabulary in the root, on its own, and kept."""

from planner.program.events import Phase
from planner.program.outline import OutlineKind
from planner.schema import DType, MemoryCategory, Precision, UnitPlan
from tests.planner.factories import CallSpec, tiny_model
from tests.published.steps import GIB, Step, step

VOCABULARY, HIDDEN = 128_256, 4_096
MATRIX = VOCABULARY * HIDDEN
BF16_FP32 = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.FLOAT32)
UNSHARDED, GATHERED = MemoryCategory.UNSHARDED_PARAMETERS, MemoryCategory.GATHER_BUFFERS
EMBED = UnitPlan(modules=("embed",))
BLOCK_ELEMENTS = 64 * 4


def untied(*extra: UnitPlan) -> Step:
    """Embedding and head of the published size around four small blocks, 8 ranks."""
    model = tiny_model(
        4,
        block=CallSpec(shapes=((64, 4),), forward_live=[0], backward_live=[(0, 1)], full_saved=0),
        embedding=CallSpec(shapes=((VOCABULARY, HIDDEN),), input_requires_grad=False),
        norm=CallSpec(shapes=((64,),)),
        head=CallSpec(shapes=((VOCABULARY, HIDDEN),)),
        loss=None,
    )
    return step(model, 8, precision=BF16_FP32, extra_units=extra)


def mid_step(found: Step) -> int:
    """Unsharded bytes while a block runs forward."""
    (bytes_,) = {
        point.by_category_bytes[UNSHARDED]
        for point in found.points[Phase.FORWARD]
        if point.moment.startswith("forward of layers.1")
    }
    return bytes_


def test_embedding_and_head_in_the_root_live_for_the_whole_step() -> None:
    """525,336,576 parameters twice: 2 x 0.979 GiB of bf16 the whole step, 3.914 to reduce (reported case 10)."""
    found = untied()
    assert MATRIX == 525_336_576
    assert round(2 * MATRIX / GIB, 3) == 0.979
    root = (2 * MATRIX + 64) * 2
    assert mid_step(found) == root + BLOCK_ELEMENTS * 2
    (reduced,) = found.sizes(OutlineKind.REDUCE_SCATTER, "")
    assert reduced == (2 * MATRIX + 64) * 4
    assert round(reduced / GIB, 3) == 3.914


def test_an_embedding_of_its_own_is_off_the_middle_of_the_step() -> None:
    """Its own unit, resharded, takes 0.979 GiB off the middle of the step (reported case 10).

    Not off every moment: gathering it beside the root at the start, and reducing it at the end, still need it.
    """
    together, apart = untied(), untied(EMBED)
    assert mid_step(together) - mid_step(apart) == MATRIX * 2
    assert max(apart.sizes(OutlineKind.REDUCE_SCATTER, "")) == (MATRIX + 64) * 4


def test_embedding_on_its_own_costs_two_gathers_and_a_reduction() -> None:
    """2 gathers and 1 reduce-scatter more (reported case 10)."""
    gathers, reductions = (
        apart - together for apart, together in zip(untied(EMBED).collectives, untied().collectives, strict=True)
    )
    assert (gathers, reductions) == (2, 1)


def test_norm_and_head_kept_add_no_backward_gather() -> None:
    """(norm, head) with reshard_after_forward False: one gather, none in backward (reported case 10)."""
    tail = UnitPlan(modules=("norm", "head"), reshard_after_forward=False)
    found = untied(tail)
    gathers = [one for one in found.outline if (one.kind, one.unit) == (OutlineKind.ALL_GATHER, "norm")]
    assert [one.phase for one in gathers] == [Phase.FORWARD]


def test_the_last_block_is_gathered_again() -> None:
    """Unless told otherwise the last block is resharded and at once gathered again (docs/fsdp2.md)."""
    found = untied()
    gathers = [one.phase for one in found.outline if (one.kind, one.unit) == (OutlineKind.ALL_GATHER, "layers.3")]
    assert gathers == [Phase.FORWARD, Phase.BACKWARD]
