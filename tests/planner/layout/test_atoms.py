"""Atoms from descriptions, optimizers and declarations, in elements."""

import pytest

from planner.layout.atoms import (
    Granularity,
    RowRange,
    atom_elements,
    atoms_of_request,
    granularity,
    optimizer_atom,
    table_names,
    together_elements,
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
    Quantizer,
    QuantizerGroup,
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


def test_rules_replace_the_atoms_of_description_and_quantizer() -> None:
    tiled = parameter(64, 64, atom={"type": "tile", "num_rows": 32, "num_columns": 32})
    plain = Workload(micro_batch=1, sequence=1, global_batch=1)
    quantized = plain.model_copy(update={"quantizer_groups": (QuantizerGroup(quantizer=Quantizer.MX),)})
    ruled = quantized.model_copy(update={"atoms": (AtomRule(parameters="x.*, embed.*", atom=ROW),)})
    tile, block = TileAtom(num_rows=32, num_columns=32), FlatAtom(num_elements=32)
    assert atoms_of_request(plain, "embed.w", tiled, is_table=False) == (tile,)
    assert atoms_of_request(quantized, "embed.w", tiled, is_table=False) == (tile, block)
    assert atoms_of_request(ruled, "embed.w", tiled, is_table=False) == (ROW,)


@pytest.mark.parametrize(
    ("quantizer", "elements"),
    [
        (Quantizer.NF4, 16_384),
        (Quantizer.FP8_ROWWISE, 256),
        (Quantizer.FP8_BLOCKWISE, 128 * 256),
        (Quantizer.INT8_ROWWISE, 256),
        (Quantizer.MX, 32),
        (Quantizer.NVFP4, 16),
    ],
)
def test_atoms_of_quantizers(quantizer: Quantizer, elements: int) -> None:
    """Of matrices and stacks; vectors are not quantized, embeddings and heads only by name."""
    group = QuantizerGroup(quantizer=quantizer)
    asked = Workload(micro_batch=1, sequence=1, global_batch=1, quantizer_groups=(group,))
    named = asked.model_copy(update={"quantizer_groups": (group.model_copy(update={"parameters": "a.*"}),)})

    def together(workload: Workload, *shape: int, is_table: bool = False) -> int:
        found = parameter(*shape)
        return together_elements(atoms_of_request(workload, "a.w", found, is_table=is_table), found)

    assert together(asked, 512, 256) == together(asked, 4, 512, 256) == elements
    assert together(asked, 512) == together(asked, 512, 256, is_table=True) == 1
    assert together(named, 512, 256, is_table=True) == elements


def test_tables_are_embeddings_and_heads() -> None:
    assert table_names(tiny_model()) == {"embed.w0", "head.w0"}
