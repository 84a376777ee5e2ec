"""Layouts of small models, by hand."""

import pytest

from planner.layout.atoms import DeclaredAtom, RowRange
from planner.layout.plan import LayoutPlan, plan_layouts
from planner.layout.planned import LayoutOptions, even_padding
from planner.program.pieces import Piece, pieces
from planner.schema import (
    Atom,
    DType,
    InconsistentRequest,
    LayoutEntry,
    ModelDescription,
    OptimizerGroup,
    OptimizerName,
    Parameter,
    RowsAtom,
    WholeAtom,
    Workload,
)
from solver.layout.problem import check
from tests.planner.factories import CallSpec, tiny_model


def workload(*groups: tuple[str, OptimizerName]) -> Workload:
    return Workload(
        micro_batch=1,
        sequence=1,
        global_batch=1,
        optimizer_groups=tuple(OptimizerGroup(parameters=glob, optimizer=name) for glob, name in groups),
    )


def planned(
    model: ModelDescription,
    *degrees: int,
    optimizer: OptimizerName = OptimizerName.ADAMW,
    atom: Atom | RowRange | None = None,
    alignment: int = 1,
    **options: int,
) -> LayoutPlan:
    blocks = [(module.path,) for module in model.modules if module.path.startswith("layers.")]
    found = plan_layouts(
        model,
        workload(("*", optimizer)),
        blocks,
        LayoutOptions(shard_degrees=degrees, alignment_elements=alignment, **options),
        () if atom is None else (DeclaredAtom(pattern="layers.*", atom=atom),),
    )
    for buffer in found.buffers:
        assert check(buffer.solved.problem, buffer.solved.layout) == ()
        assert sorted(entry.parameter for entry in buffer.layout.entries) == sorted(n for n, _ in buffer.parameters)
    return found


def block(*shapes: tuple[int, ...]) -> ModelDescription:
    return tiny_model(2, block=CallSpec(shapes=shapes, full_saved=0))


def test_every_unit_has_a_buffer_and_every_parameter_a_place() -> None:
    """Root: 16 x 4, 4 and 16 x 4 on four ranks; blocks of 3 x 5 and 5."""
    found = planned(block((3, 5), (5,)), 4)
    assert [unit.modules for unit in found.units] == [("",), ("layers.0",), ("layers.1",)]
    root, first, second = found.layouts
    assert [(entry.parameter, entry.offset_elements) for entry in root.entries] == [
        ("embed.w0", 0),
        ("norm.w0", 64),
        ("head.w0", 68),
    ]
    assert (root.name, root.dtype, root.shard_elements) == ("(root)/float32/adamw", DType.FLOAT32, 33)
    assert first.entries == (
        LayoutEntry(parameter="layers.0.w0", offset_elements=0, num_elements=15),
        LayoutEntry(parameter="layers.0.w1", offset_elements=15, num_elements=5),
    )
    assert (first.name, second.name) == ("layers.0/float32/adamw", "layers.1/float32/adamw")
    assert found.num_elements == 132 + 2 * 20
    assert found.padding_elements == 0
    # Chunks of one of three rows on four ranks pad a row of 5; chunks of two of five elements pad three.
    assert [unit.even_padding_elements for unit in found.units] == [0, 8, 8]


def test_rows_stay_together() -> None:
    """6 x 4 and 3 x 5 on two ranks by rows: 20 + 0 | 4 + 15 is 20 each with one of padding."""
    found = planned(block((6, 4), (3, 5)), 2, atom=RowsAtom(num_rows=1))
    layout = found.layouts[1]
    assert layout.shard_elements == 20
    assert [(p.parameter[-2:], p.rank, p.num_elements) for p in pieces(layout)] == [
        ("w0", 0, 20),
        ("w0", 1, 4),
        ("w1", 1, 15),
    ]
    assert found.units[1].padding_elements == 1
    assert found.buffers[1].lower_bound_padding_elements <= 1


def test_pieces_follow_the_edges() -> None:
    layout = planned(block((10, 1), (4,)), 4).layouts[1].model_copy(update={"shard_elements": 4})
    assert list(pieces(layout)) == [
        Piece(parameter="layers.0.w0", rank=0, num_elements=4),
        Piece(parameter="layers.0.w0", rank=1, num_elements=4),
        Piece(parameter="layers.0.w0", rank=2, num_elements=2),
        Piece(parameter="layers.0.w1", rank=2, num_elements=2),
        Piece(parameter="layers.0.w1", rank=3, num_elements=2),
    ]


def test_what_differs_in_type_gradient_or_optimizer_has_a_buffer_of_its_own() -> None:
    model = block((4, 4), (4, 2), (4,), (2, 2))
    w0, w1, w2, w3 = model.parameter_sets["block"]
    mixed = (
        w0,
        w1.model_copy(update={"dtype": DType.BFLOAT16}),
        w2.model_copy(update={"requires_grad": False}),
        w3.model_copy(update={"optimizer_group": "slow"}),
    )
    model = model.model_copy(update={"parameter_sets": {**model.parameter_sets, "block": mixed}})
    found = plan_layouts(
        model,
        workload(("layers.1.w0", OptimizerName.SGD), ("*", OptimizerName.ADAMW)),
        [("layers.0",), ("layers.1",)],
        LayoutOptions(shard_degrees=(2,)),
    )
    names = [[buffer.layout.name for buffer in unit.buffers] for unit in found.units]
    assert names[1] == [
        "layers.0/float32/adamw",
        "layers.0/bfloat16/adamw",
        "layers.0/float32/frozen",
        "layers.0/float32/adamw/2",
    ]
    assert names[2][0] == "layers.1/float32/sgd"
    assert found.layouts[3].dtype is DType.FLOAT32


def test_tied_parameters_lie_in_one_buffer_once() -> None:
    found = planned(tiny_model(1, tied_head=True), 2)
    assert [entry.parameter for entry in found.layouts[0].entries] == ["embed.w0", "norm.w0"]


def test_parameters_without_elements_are_left_out() -> None:
    found = planned(block((0, 4), (4,)), 2)
    assert [entry.parameter for entry in found.layouts[1].entries] == ["layers.0.w1"]
    assert [unit.modules for unit in planned(block((0, 4)), 2).units] == [("",)]


def test_buffers_are_split_where_widths_do_not_go_together() -> None:
    """8 x 6 and 8 x 5 by rows on eight ranks: 24 each together, 6 and 5 apart."""
    model = block((8, 6), (8, 5))
    apart = planned(model, 8, atom=RowsAtom(num_rows=1))
    assert [buffer.layout.name for buffer in apart.units[1].buffers] == [
        "layers.0/float32/adamw",
        "layers.0/float32/adamw/2",
    ]
    assert [buffer.layout.shard_elements for buffer in apart.units[1].buffers] == [6, 5]
    assert apart.units[1].padding_elements == 0
    assert apart.units[1].given_order_padding_elements == 8 * 24 - 88
    together = planned(model, 8, atom=RowsAtom(num_rows=1), max_buffers=1)
    assert [buffer.layout.shard_elements for buffer in together.units[1].buffers] == [24]


def test_rows_in_a_range_are_chosen() -> None:
    """48 rows on two ranks are cut in the middle; two to seven rows divide 24 rows best in sixes."""
    found = planned(block((48, 10)), 2, atom=RowRange(least_rows=2, most_rows=7))
    (tensor,) = found.buffers[1].solved.problem.tensors
    assert (tensor.atom_elements, found.layouts[1].shard_elements) == (60, 240)


def test_the_largest_degree_with_little_padding() -> None:
    """A block of five rows: 60 % on 8 ranks, 20 % on 3 and on 2, less with the root, which pads next to nothing."""
    model = tiny_model(2, block=CallSpec(shapes=((5, 100),), full_saved=0))
    rows = RowsAtom(num_rows=1)

    def degree(accepted_percent: int) -> int:
        return planned(model, 2, 3, 8, atom=rows, accepted_ppm=accepted_percent * 10_000).num_ranks

    assert [degree(60), degree(20), degree(5), degree(1)] == [8, 3, 3, 3]
    assert planned(model, 2, 5, 8, atom=rows, accepted_ppm=10_000).num_ranks == 5


def test_muon_matrices_are_whole_where_that_fits_and_cut_otherwise() -> None:
    """Four 8 x 8 on two ranks are whole, a pair each; on eight they would leave half of the ranks empty."""
    model = block((8, 8), (8, 8), (8, 8), (8, 8), (8,))
    whole = planned(model, 2, optimizer=OptimizerName.MUON)
    assert [buffer.layout.name for buffer in whole.units[1].buffers] == [
        "layers.0/float32/muon",
        "layers.0/float32/adamw",
    ]
    assert {piece.num_elements for piece in pieces(whole.units[1].buffers[0].layout)} == {64}
    assert whole.owners is None
    assert whole.units[0].buffers[0].layout.name == "(root)/float32/adamw"
    cut = planned(model, 8, optimizer=OptimizerName.MUON)
    assert cut.units[1].buffers[0].owned == {f"layers.0.w{number}" for number in range(4)}
    assert cut.owners is not None
    assert sorted(cut.owners.names) == [f"layers.{unit}.w{number}" for unit in range(2) for number in range(4)]


def test_owners_of_cut_matrices() -> None:
    """Eight matrices of 8 x 8 on eight ranks: one each, of which its owner holds half already.

    Five steps of three products of 8 x 8 matrices, 2 x 8^3 each; 64 elements of 2 bytes.
    """
    owners = planned(block((8, 8), (8, 8), (8, 8), (8, 8)), 8, optimizer=OptimizerName.MUON).owners
    assert owners is not None
    assert owners.solved.is_optimal
    assert (owners.solved.largest_work, owners.solved.largest_bytes) == (5 * 3 * 2 * 8**3, 128)
    assert sorted(owners.solved.owners) == list(range(8))
    assert {load.num_matrices for load in owners.loads} == {1}
    assert {load.gathered_bytes for load in owners.loads} == {64}
    assert owners.longest_first_flops == owners.solved.largest_work


def test_matrices_go_where_most_of_them_is() -> None:
    """8 x 8 and 4 x 8 on two ranks of 48: the first rank has 48 of 64, the second 16 and all 32 of the other."""
    found = planned(
        tiny_model(1, block=CallSpec(shapes=((8, 8), (4, 8)), full_saved=0)), 2, optimizer=OptimizerName.MUON
    )
    assert found.owners is not None
    assert found.owners.names == ("layers.0.w0",)
    assert found.owners.solved.owners == (0,)
    assert [load.gathered_bytes for load in found.owners.loads] == [2 * 16, 0]


def test_a_whole_matrix_that_is_declared_is_never_cut() -> None:
    found = planned(block((8, 8), (8,)), 4, atom=WholeAtom())
    assert found.layouts[1].shard_elements >= 64


@pytest.mark.parametrize(("ranks", "rows"), [(4, 3), (8, 3), (3, 1)])
def test_padding_of_even_shards(ranks: int, rows: int) -> None:
    """5 rows of 7 become 4 x 2, 8 x 1 or 3 x 2 rows."""
    assert even_padding(Parameter(name="w", shape=(5, 7)), ranks) == rows * 7
    assert even_padding(Parameter(name="w", shape=()), ranks) == ranks - 1
    assert even_padding(Parameter(name="w", shape=(0, 7)), ranks) == 0


def test_a_trainable_parameter_without_a_group() -> None:
    with pytest.raises(InconsistentRequest, match=r"embed\.w0"):
        plan_layouts(
            tiny_model(1),
            workload(("layers.*", OptimizerName.ADAMW)),
            [("layers.0",)],
            LayoutOptions(shard_degrees=(2,)),
        )
