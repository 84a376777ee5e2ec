"""Atoms from descriptions, optimizers and declarations, in elements."""

import pytest

from planner.layout.atoms import (
    DeclaredAtom,
    Granularity,
    RowRange,
    atom_elements,
    declared_atom,
    granularity,
    optimizer_atom,
    table_names,
)
from planner.schema import (
    Atom,
    AtomRule,
    ElementAtom,
    FlatAtom,
    InconsistentRequest,
    OptimizerGroup,
    OptimizerName,
    Parameter,
    RowsAtom,
    TileAtom,
    WholeAtom,
    Workload,
)
from tests.planner.factories import tiny_model

ELEMENT, WHOLE, ROW = ElementAtom(), WholeAtom(), RowsAtom(num_rows=1)


def parameter(*shape: int, **fields: object) -> Parameter:
    return Parameter.model_validate({"name": "w", "shape": shape} | fields)


def workload(*groups: tuple[str, OptimizerName]) -> Workload:
    return Workload(
        micro_batch=1,
        sequence=1,
        global_batch=1,
        optimizer_groups=tuple(OptimizerGroup(parameters=glob, optimizer=name) for glob, name in groups),
    )


@pytest.mark.parametrize(
    ("atom", "shape", "elements"),
    [
        (ELEMENT, (96, 10), 1),
        (FlatAtom(num_elements=256), (96, 10), 256),
        (FlatAtom(num_elements=4096), (96, 10), 960),
        (RowsAtom(num_rows=16), (96, 10), 160),
        (RowsAtom(num_rows=128), (96, 10), 960),
        (RowsAtom(num_rows=16), (4, 96, 10), 160),
        (RowsAtom(num_rows=16), (960,), 1),
        (TileAtom(num_rows=32, num_columns=32), (96, 10), 320),
        (TileAtom(num_rows=32, num_columns=32), (4, 96, 10), 320),
        (TileAtom(num_rows=64, num_columns=64), (4, 96, 10), 960),
        (TileAtom(num_rows=128, num_columns=128), (4, 96, 10), 960),
        (TileAtom(num_rows=64, num_columns=64), (96, 10), 640),
        (TileAtom(num_rows=32, num_columns=32), (960,), 1),
        (WHOLE, (96, 10), 960),
        (WHOLE, (), 1),
        (RowsAtom(num_rows=2), (), 1),
    ],
)
def test_elements_that_stay_together(atom: Atom, shape: tuple[int, ...], elements: int) -> None:
    assert atom_elements(atom, parameter(*shape)) == elements


def test_what_is_not_contiguous_stays_whole_unless_any_cut_is_allowed() -> None:
    apart = parameter(96, 10, contiguous=False)
    assert atom_elements(RowsAtom(num_rows=16), apart) == 960
    assert atom_elements(FlatAtom(num_elements=16), apart) == 960
    assert atom_elements(ELEMENT, apart) == 1


@pytest.mark.parametrize(
    ("optimizer", "shape", "is_table", "atom"),
    [
        (OptimizerName.ADAMW, (64, 64), False, ELEMENT),
        (OptimizerName.SGD_MOMENTUM, (64, 64), False, ELEMENT),
        (OptimizerName.ADAMW_8BIT, (64, 64), False, FlatAtom(num_elements=256)),
        (OptimizerName.ADAMW_8BIT, (64, 63), False, ELEMENT),
        (OptimizerName.ADAMW_8BIT, (65, 63), False, ELEMENT),
        (OptimizerName.ADAMW_8BIT, (64, 64), True, FlatAtom(num_elements=256)),
        (OptimizerName.MUON, (64, 64), False, WHOLE),
        (OptimizerName.MUON, (64, 64), True, ELEMENT),
        (OptimizerName.MUON, (64,), False, ELEMENT),
        (OptimizerName.MUON, (8, 64, 64), False, ELEMENT),
        (OptimizerName.ADAFACTOR, (64, 64), False, ROW),
    ],
)
def test_atoms_of_optimizers(optimizer: OptimizerName, shape: tuple[int, ...], is_table: bool, atom: Atom) -> None:
    """8-bit state needs 4,096 elements and whole blocks of 256; Muon takes matrices that are no tables."""
    found = optimizer_atom(workload(("*", optimizer)), "a.w", parameter(*shape), is_table=is_table)
    assert found == atom


def test_the_group_of_a_parameter_decides() -> None:
    asked = workload(("*.norm.*", OptimizerName.ADAMW), ("*", OptimizerName.MUON))
    assert optimizer_atom(asked, "x.norm.w", parameter(4, 4), is_table=False) == ELEMENT
    assert optimizer_atom(asked, "x.w", parameter(4, 4), is_table=False) == WHOLE
    frozen = parameter(4, 4, requires_grad=False)
    assert optimizer_atom(workload(("none", OptimizerName.MUON)), "x.w", frozen, is_table=False) == ELEMENT
    with pytest.raises(InconsistentRequest):
        optimizer_atom(workload(("none", OptimizerName.MUON)), "x.w", parameter(4, 4), is_table=False)


def test_both_atoms_are_kept() -> None:
    """16 rows of 10 and blocks of 256: 1,280 elements; more than there are is whole."""
    blocks = FlatAtom(num_elements=256)
    assert granularity(parameter(512, 10), RowsAtom(num_rows=16), blocks) == Granularity(step_elements=1280)
    assert granularity(parameter(96, 10), RowsAtom(num_rows=16), blocks) == Granularity(step_elements=960)
    assert granularity(parameter(512, 10), ELEMENT, blocks) == Granularity(step_elements=256)
    assert granularity(parameter(512, 10), WHOLE, ELEMENT) == Granularity(step_elements=5120)


def test_a_range_of_rows() -> None:
    """In steps of rows, or of as many rows as the optimizer's blocks allow."""
    rows = RowRange(least_rows=16, most_rows=128)
    assert granularity(parameter(512, 10), rows, ELEMENT) == Granularity(
        step_elements=10, least_steps=16, most_steps=128
    )
    # 256 and rows of 10 meet every 128 rows; rows of 64 every 4.
    assert granularity(parameter(512, 10), rows, FlatAtom(num_elements=256)) == Granularity(step_elements=1280)
    assert granularity(parameter(512, 64), rows, FlatAtom(num_elements=256)) == Granularity(
        step_elements=256, least_steps=4, most_steps=32
    )
    assert granularity(parameter(512), rows, ELEMENT) == Granularity(step_elements=1)


def test_declared_atoms_replace_that_of_the_description() -> None:
    tiled = parameter(64, 64, atom={"type": "tile", "num_rows": 32, "num_columns": 32})
    declared = (
        DeclaredAtom(pattern="layers.*.w", atom=ROW),
        DeclaredAtom(pattern="*", atom=WHOLE),
    )
    ruled = Workload(micro_batch=1, sequence=1, global_batch=1, atoms=(AtomRule(parameters="embed.*", atom=ROW),))
    plain = ruled.model_copy(update={"atoms": ()})
    assert declared_atom(plain, "layers.0.w", tiled, declared) == ROW
    assert declared_atom(plain, "embed.w", tiled, declared) == WHOLE
    assert declared_atom(plain, "embed.w", tiled, ()) == TileAtom(num_rows=32, num_columns=32)
    assert declared_atom(ruled, "embed.w", tiled, ()) == ROW
    assert declared_atom(ruled, "embed.w", tiled, declared) == WHOLE


def test_tables_are_embeddings_and_heads() -> None:
    assert table_names(tiny_model()) == {"embed.w0", "head.w0"}
