"""8-bit state whose precision depends on where the shards end."""

from planner.layout.plan import LayoutPlan, plan_layouts
from planner.layout.planned import LayoutOptions
from planner.layout.precision import precision_notes, wide_pieces
from planner.program.pieces import pieces
from planner.schema import Layout, LayoutEntry, OptimizerGroup, OptimizerName, Workload
from tests.planner.factories import CallSpec, tiny_model


def planned(*shapes: tuple[int, ...], ranks: int, accepted_ppm: int = 30_000) -> LayoutPlan:
    model = tiny_model(
        1, block=CallSpec(shapes=shapes, full_saved=0), embedding=None, norm=None, head=CallSpec(shapes=((4,),))
    )
    return plan_layouts(
        model,
        Workload(
            micro_batch=1,
            sequence=1,
            global_batch=1,
            optimizer_groups=(OptimizerGroup(optimizer=OptimizerName.ADAMW_8BIT),),
        ),
        [("layers.0",)],
        LayoutOptions(shard_degrees=(ranks,), accepted_ppm=accepted_ppm),
    )


def test_blocks_of_4096_keep_every_piece_in_8_bits_where_they_cost_little() -> None:
    """64 x 4096 on 32 ranks: two blocks each. A vector of 100 has float32 state anywhere."""
    found = planned((64, 4096), (100,), ranks=32, accepted_ppm=60_000)
    (_, matrix, vector) = found.buffers
    assert (matrix.eight_bit, vector.eight_bit) == ({"layers.0.w0"}, set())
    assert {piece.num_elements for piece in pieces(matrix.layout)} == {2 * 4096}
    assert vector.layout.shard_elements == 8
    assert found.notes == ()


def test_what_the_larger_blocks_are_for() -> None:
    """Five and seven blocks of 4,096 on eight ranks: by 256, a piece of 2,048 has float32 state."""
    shapes = ((5, 4096), (7, 4096))
    assert "8 bits: 1;" in planned(*shapes, ranks=8).notes[0]
    assert planned(*shapes, ranks=8, accepted_ppm=400_000).notes == ()


def test_smaller_blocks_are_taken_and_explained_where_the_others_cost_too_much() -> None:
    """10 x 4096 on 64 ranks by 4,096 would leave 54 ranks empty; by 256 each holds 768 and state is float32."""
    found = planned((10, 4096), ranks=64, accepted_ppm=250_000)
    (_, buffer) = found.buffers
    assert buffer.layout.shard_elements == 768
    (note,) = found.notes
    assert note.startswith("pieces that keep float32 moments under adamw_8bit, though")
    assert "would have 8 bits: 54; a piece needs at least 4096 elements" in note
    assert "rank 0 holds 768 of 'layers.0.w0'" in note


def test_pieces_that_are_too_small_or_end_within_a_block() -> None:
    """10,240 elements cut at 5,000 and 9,096: by 256 neither piece is whole, and the last is too small."""
    layout = Layout(
        name="x",
        dtype="float32",
        shard_elements=5000,
        entries=(
            LayoutEntry(parameter="a", offset_elements=0, num_elements=10_240),
            LayoutEntry(parameter="b", offset_elements=10_240, num_elements=100),
        ),
    )
    found = wide_pieces(pieces(layout), {"a"})
    assert [piece.num_elements for piece in found] == [5000, 5000, 240]
    assert wide_pieces(pieces(layout), set()) == ()
    assert "8 bits: 1;" in precision_notes(pieces(layout), {"b"})[0]
    whole = layout.model_copy(update={"shard_elements": 5120})
    assert wide_pieces(pieces(whole), {"a"}) == ()
